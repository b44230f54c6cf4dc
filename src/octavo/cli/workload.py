"""`octavo workload`: shows what a workload asks for, and writes its requests. Knows the terminal."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

import typer

from octavo.cli.values import QuickCommand, QuickGroup

if TYPE_CHECKING:
    from octavo.workload.request import Request
    from octavo.workload.spec import Workload
    from octavo.workload.summary import Spread, Summary

__all__ = ["app"]

app = typer.Typer(
    cls=QuickGroup,
    no_args_is_help=True,
    help="Show what a workload asks for, and write its requests.",
    rich_markup_mode=None,
)

_Name = Annotated[
    str,
    typer.Argument(
        metavar="FILE|PRESET",
        help="A .toml or .json file, a trace, or chat, autocomplete, voice, rag, batch or agent.",
    ),
]
_Seed = Annotated[int | None, typer.Option(min=0, metavar="NUMBER", help="Instead of the workload's own.")]
_Requests = Annotated[
    int | None, typer.Option(min=1, max=10**12, metavar="COUNT", help="Instead of the workload's own number.")
]
_Rate = Annotated[
    float | None, typer.Option(metavar="RATE", help="Sessions a second, instead of the workload's own.")
]


@app.command(cls=QuickCommand)
def show(
    name: _Name,
    seed: _Seed = None,
    requests: _Requests = None,
    rate: _Rate = None,
    first: Annotated[int, typer.Option(min=0, metavar="COUNT", help="Show so many first requests.")] = 5,
    block_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65536,
            metavar="TOKENS",
            help="What is shared is counted in such blocks; 16, or a trace's 512.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print rates, lengths and sharing of all requests, and the first of them."""
    import msgspec

    from octavo.cli.results import changed_workload
    from octavo.workload.generate import requests_of
    from octavo.workload.summary import summarize

    workload = changed_workload(name, seed=seed, requests=requests, rate=rate)
    in_blocks = _has_hashes(workload)
    shown: list[Request] = []

    def noted(all_: Iterable[Request]) -> Iterable[Request]:
        for request in all_:
            if len(shown) < first:
                shown.append(request)
            yield request

    size = block_size or (512 if in_blocks else 16)
    made = noted(requests_of(workload))
    head = list(itertools.islice(made, 1))
    if not head:
        from octavo.errors import WorkloadError

        raise WorkloadError(f"{name} has no requests within its duration_s; make it longer.")
    summary = summarize(itertools.chain(head, made), block_size=size, partial=in_blocks)
    if json:
        value = {
            "workload": workload,
            "summary": {**msgspec.to_builtins(summary), "hit_rate": summary.hit_rate},
            "first": [_row(request) for request in shown],
        }
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
        return
    _print(name, workload, summary, shown)


@app.command(cls=QuickCommand)
def write(
    name: _Name,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where to; standard output by default."),
    ] = None,
    kind: Annotated[
        Literal["jsonl", "mooncake"], typer.Option("--format", help="Plain JSONL, or a trace as Mooncake's.")
    ] = "jsonl",
    prompts: Annotated[
        Literal["ids", "text", "parts"],
        typer.Option(help="Made-up prompts as token ids, as words, or as the parts that they share."),
    ] = "ids",
    vocabulary: Annotated[
        int, typer.Option(min=1024, max=2**31, metavar="COUNT", help="Token ids are from 256 to below this.")
    ] = 32_000,
    seed: _Seed = None,
    requests: _Requests = None,
    rate: _Rate = None,
) -> None:
    """Write the requests, one a line."""
    from octavo.cli.results import changed_workload
    from octavo.workload.generate import requests_of
    from octavo.workload.lines import mooncake_lines, plain_lines

    made = requests_of(changed_workload(name, seed=seed, requests=requests, rate=rate))
    lines = mooncake_lines(made) if kind == "mooncake" else plain_lines(made, prompts, vocabulary)
    first = list(
        itertools.islice(lines, 1)
    )  # what is wrong with a trace is mostly seen before a file is made
    if output is None:
        _write_all(itertools.chain(first, lines), sys.stdout.buffer)
        return
    with output.open("wb") as file:
        count = _write_all(itertools.chain(first, lines), file)
    print(f"{count} requests are in {output}.", file=sys.stderr)


def _write_all(lines: Iterable[bytes], file: IO[bytes]) -> int:
    count = 0
    for line in lines:
        file.write(line)
        count += 1
    return count


def _has_hashes(workload: Workload) -> bool:
    from octavo.workload.traces import format_of

    if workload.trace is None:
        return False
    return (
        workload.trace.format if workload.trace.format != "auto" else format_of(Path(workload.trace.file))
    ) == ("mooncake")


def _print(name: str, workload: Workload, summary: Summary, shown: list[Request]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    say = console.print
    say(f"{name}: {workload.description}" if workload.description else name)
    say(
        f"{summary.requests} requests in {summary.sessions} sessions ({summary.turns_mean:.2f} turns on average), "
        f"seed {workload.seed}",
        soft_wrap=True,
    )
    if summary.rate is not None:
        cv = "" if summary.gap_cv is None else f", gaps' CV {summary.gap_cv:.2f}"
        say(
            f"arrivals: {summary.rate:.3f}/s over {summary.span_s:.1f} s, {summary.peak_rate:g} in the busiest "
            f"second{cv}",
            soft_wrap=True,
        )
    if summary.followers:
        say(
            f"{summary.followers} requests wait for an answer to another one, and are in no rate",
            soft_wrap=True,
        )
    if summary.hit_rate is not None:
        say(
            f"shared: {summary.hit_rate:.1%} of {summary.blocks} blocks of {summary.block_size} tokens were in an "
            "earlier prompt",
            soft_wrap=True,
        )
    for kind, counts in (("tenants", summary.tenants), ("priorities", summary.priorities)):
        if len(counts) > 1:
            say(
                f"{kind}: " + ", ".join(f"{key} {count}" for key, count in sorted(counts.items())),
                soft_wrap=True,
            )
    table = Table("tokens", *("mean", "min", "p10", "p50", "p90", "p99", "max"), box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for title, spread in (("input", summary.input), ("output", summary.output)):
        table.add_row(title, *_cells(spread))
    say(table)
    if not shown:
        return
    rows = [_row(request) for request in shown]
    table = Table(*rows[0], box=None, pad_edge=False)
    for row in rows:
        table.add_row(*("-" if value is None else f"{value}" for value in row.values()))
    say("\nthe first:")
    say(table)


def _cells(spread: Spread | None) -> list[str]:
    if spread is None:
        return ["only the server counts them"]
    values = (spread.min, spread.p10, spread.p50, spread.p90, spread.p99, spread.max)
    return [f"{spread.mean:.1f}", *map(str, values)]


def _row(request: Request) -> dict[str, Any]:
    after = None if request.after is None else f"{request.after} + {request.delay_s:.3f} s"
    return {
        "index": request.index,
        "at_s": round(request.at_s, 3),
        "after": after,
        "tenant": request.tenant,
        "priority": request.priority,
        "session": request.session,
        "turn": request.turn,
        "input": request.input_tokens,
        "output": request.output_tokens,
    }
