"""Does an advice bring what it says? A badly set server is loaded and watched, set as it was told, and loaded again.

    .venv/bin/python benchmarks/observe.py --max-running 2
    .venv/bin/python benchmarks/observe.py --load 0.8 --speculation off --kv-memory 24MiB

What is not an option of this script is one of `octavo serve`, the bad one. The load is `--load` (0.85) of what the
server answers so with eight clients at once.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from octavo.bench.measures import Measures, measure
from octavo.bench.record import Record
from octavo.bench.shown import label_of, show
from octavo.planning.remedies import SHOWN

OCTAVO = str(Path(sys.executable).with_name("octavo"))
WORKLOAD = """
description = "Short questions behind one instruction"
requests = 2000
arrivals = { kind = "poisson", rate = 2.0 }
input = { kind = "lognormal", parts = [{ median = 120, sigma = 0.6 }], max = 600 }
output = { kind = "lognormal", parts = [{ median = 60, sigma = 0.5 }], max = 300 }

[[prefix]]
tokens = PREFIX
"""


@contextmanager
def serving(model: str, port: int, options: Sequence[str]) -> Iterator[str]:
    """The server's URL, while it runs with these options."""
    process = subprocess.Popen(
        [OCTAVO, "serve", model, "--port", str(port), *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        while True:
            try:
                urllib.request.urlopen(f"{url}/health").close()
                break
            except urllib.error.URLError:
                if process.poll() is not None:
                    raise SystemExit(f"octavo serve {' '.join(options)} ended") from None
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait()


@contextmanager
def benching(url: str, workload: Path, record: Path, *options: str) -> Iterator[None]:
    """A bench runs beside what is done here; at the end it has ended."""
    command = [OCTAVO, "bench", url, "-w", str(workload), "-o", str(record), "--quiet", *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
        process.wait()
    finally:
        process.terminate()


def benched(url: str, workload: Path, record: Path, *options: str) -> Measures:
    with benching(url, workload, record, *options):
        pass
    return measure(Record.read(record).runs[0])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--port", type=int, default=18473)
    parser.add_argument("--load", type=float, default=0.85)
    parser.add_argument("--for", dest="seconds", type=int, default=60)
    parser.add_argument(
        "--prefix", type=int, default=200, help="tokens of the instruction that all prompts begin with"
    )
    asked, bad = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        workload = folder / "workload.toml"
        workload.write_text(WORKLOAD.replace("PREFIX", str(asked.prefix)), encoding="utf-8")
        record = folder / "record.json"
        with serving(asked.model, asked.port, bad) as url:
            most = benched(url, workload, record, "--clients", "8", "--requests", "24", "--seed", "1").value(
                "request_rate"
            )
            assert most
            rate = asked.load * most
            load = ["--seed", "2", "--rate", f"{rate:.2f}", "--duration", f"{asked.seconds + 8}s"]
            with benching(url, workload, record, *load):
                time.sleep(6)
                told = watched(url, asked.seconds)
            before = measure(Record.read(record).runs[0])
        best = told["best"]
        print(
            f"octavo serve {asked.model} {' '.join(bad)}, {rate:.2f} requests/s ({most:.2f} with eight clients)"
        )
        print(f"{told['verdict']}\n")
        for one in told["checks"]:
            seen, simulated = show(one["name"], one["seen"]), show(one["name"], one["simulated"])
            print(f"  {label_of(one['name']):15} watched {seen:>14} simulated {simulated:>14}")
        if best is None:
            print(json.dumps(told["remedies"][:3], indent=1))
            return
        if best["knob"] == "servers":
            print("no option to change")
            return
        name, _, value = best["option"].partition(" ")
        good = [*without(bad, name), name, *([value] if value else [])]
        with serving(asked.model, asked.port, good) as url:
            after = benched(url, workload, record, *load)
        print("\n| | before | should be | range | is |\n|---|---|---|---|---|")
        for metric in SHOWN:
            effect = best["effects"].get(metric)
            if effect is not None:
                said, low, high = (show(metric, effect[key]) for key in ("value", "low", "high"))
                was, now = show(metric, before.value(metric)), show(metric, after.value(metric))
                print(f"| {label_of(metric)} | {was} | {said} | {low} to {high} | {now} |")


def watched(url: str, seconds: int) -> dict[str, Any]:
    """What `octavo plan --observe` says."""
    command = [OCTAVO, "plan", "--observe", url, "--for", f"{seconds}s", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 1, 3):
        raise SystemExit(done.returncode)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def without(options: Sequence[str], name: str) -> list[str]:
    """The options but this one and its value."""
    if name not in options:
        return list(options)
    place = options.index(name)
    return [*options[:place], *options[place + 2 :]]


if __name__ == "__main__":
    main()
