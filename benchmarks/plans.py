"""Is a plan for this machine true: three targets that bind differently, each plan served as printed, and measured.

    python -m benchmarks.plans [--model smollm2] [--folder build/plans] [--stage calibrate|plan|measure|table|all]

1. `octavo serve` with one thread and with as many as there are cores is calibrated over HTTP (`octavo simulate
   --calibrate URL`), right before the rest.
2. `octavo plan --pace` is asked for each target.
3. The command line that it prints is started as it is, and so is that of the next cheaper setting; `octavo bench`
   measures both with the same workload, and judges the target by its exit code.

A plan is true where its setting meets the target, and the next cheaper one misses it. The exit code is 1 where one is
not. Stages leave their outcome in the folder, so that the measuring ones can be run when nothing else does.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table

from octavo.bench.shown import label_of, show
from octavo.workload.arrivals import Gamma
from octavo.workload.lengths import Uniform
from octavo.workload.spec import PrefixLevel, Workload

OCTAVO = [sys.executable, "-m", "octavo"]
LIMITS = ["--max-model-len", "2048", "--max-running", "64", "--max-step-tokens", "512"]
KV_MEMORY = "512MiB"
"""Of the servers that are calibrated."""
CALIBRATION_S = 300
INVALID, TRIES = 3, 3
"""The exit code of octavo bench for a run that does not count, and how often one is made."""


class Case(NamedTuple):
    """A target, the workload that it is for, and what else the plan is asked."""

    binds: str
    slo: str
    workload: Workload
    asked: tuple[str, ...] = ()


CASES = {
    "prompts": Case(
        "arithmetic",
        "ttft_p95<1100ms",
        Workload(
            requests=20,
            arrivals=Gamma(rate=0.6, cv=0.3),
            input=Uniform(min=1000, max=1100),
            output=Uniform(min=4, max=8),
        ),
        ("--kv-memory", "128MiB"),
    ),
    "talk": Case(
        "the memory for K and V: how many run at once",
        "ttft_p95<1s,tpot_p95<30ms",
        Workload(
            requests=85,
            arrivals=Gamma(rate=3.4, cv=0.5),
            input=Uniform(min=50, max=80),
            output=Uniform(min=70, max=90),
        ),
        ("--kv-memory", "4MiB,16MiB,64MiB,256MiB"),
    ),
    "shared": Case(
        "the memory for K and V: which beginnings stay in the prefix cache",
        "ttft_p90<300ms",
        Workload(
            requests=90,
            arrivals=Gamma(rate=3.0, cv=0.5),
            prefix=(PrefixLevel(tokens=400, branches=6),),
            input=Uniform(min=16, max=48),
            output=Uniform(min=8, max=24),
        ),
    ),
}


@contextmanager
def served(command: list[str], port: int) -> Iterator[str]:
    """`octavo serve` in a process of its own: its URL."""
    words = [*OCTAVO, *command, "--port", str(port), "--log-level", "warning"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError(f"{shlex.join(words)} did not start")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def calibrate(arguments: argparse.Namespace, console: Console) -> None:
    for threads in sorted({1, os.cpu_count() or 1}):
        command = ["serve", arguments.model, "--threads", str(threads), "--kv-memory", KV_MEMORY]
        with served([*command, "--speculation", "off", *LIMITS], arguments.port) as url:
            pace = arguments.folder / f"pace-{threads}.json"
            words = ["simulate", "--calibrate", url, *LIMITS, "--threads", str(threads), "-o", str(pace)]
            began = time.perf_counter()
            told = subprocess.run(
                [*OCTAVO, *words], check=True, text=True, capture_output=True, timeout=CALIBRATION_S
            )
            console.print(told.stdout, markup=False)
            console.print(f"{threads} threads calibrated in {time.perf_counter() - began:.0f} s")


def plan(arguments: argparse.Namespace, console: Console) -> None:
    for name, case in cases(arguments):
        workload = arguments.folder / f"{name}.json"
        workload.write_bytes(msgspec.json.encode(case.workload))
        words = [
            "plan", "--model", arguments.model, "--workload", str(workload), "--slo", case.slo, "--requests",
            str(case.workload.requests), *case.asked, "--html", str(arguments.folder / f"{name}.html"), "--json",
        ]  # fmt: skip
        for pace in sorted(arguments.folder.glob("pace-*.json")):
            words += ["--pace", str(pace)]
        began = time.perf_counter()
        told = subprocess.run([*OCTAVO, *words], check=False, text=True, capture_output=True)
        if told.returncode:
            raise RuntimeError(f"{name}: {told.stderr or told.stdout[:2000]}")
        found = json.loads(told.stdout)
        (arguments.folder / f"{name}.plan.json").write_text(told.stdout)
        console.print(f"{name}: {found['simulations']} simulations in {time.perf_counter() - began:.0f} s")
        for each in ("best", "cheaper"):
            one = found[each]
            console.print(f"  {each}: {one['serve'] if one else 'none'}", markup=False)


def measured(words: list[str]) -> subprocess.CompletedProcess[str]:
    """`octavo bench`, and again where the run does not count since the client itself was kept from its core."""
    told = subprocess.run([*OCTAVO, *words], check=False, text=True, capture_output=True)
    for _ in range(TRIES - 1):
        if told.returncode == INVALID:
            told = subprocess.run([*OCTAVO, *words], check=False, text=True, capture_output=True)
    return told


def measure(arguments: argparse.Namespace, console: Console) -> None:
    for name, case in cases(arguments):
        made = json.loads((arguments.folder / f"{name}.plan.json").read_text())
        for each in ("best", "cheaper"):
            if made[each] is None:
                continue
            with served(shlex.split(made[each]["serve"])[1:], arguments.port) as url:
                words = [
                    "bench", url, "--workload", str(arguments.folder / f"{name}.json"), "--slo", case.slo, "--quiet",
                    "--repeats", str(arguments.repeats), "--json",
                ]  # fmt: skip
                told = measured(words)
            if told.returncode not in (0, 1):
                raise RuntimeError(f"{name}, {each}: {told.stderr or told.stdout[:2000]}")
            (arguments.folder / f"{name}.{each}.json").write_text(told.stdout)
            console.print(f"{name}, {each}: {'met' if told.returncode == 0 else 'missed'}")


def rows(arguments: argparse.Namespace) -> Iterator[tuple[list[str], bool]]:
    """Of the table, and whether each is as the plan says."""
    for name, case in cases(arguments):
        made = json.loads((arguments.folder / f"{name}.plan.json").read_text())
        for each in ("best", "cheaper"):
            path = arguments.folder / f"{name}.{each}.json"
            if made[each] is None or not path.exists():
                continue
            report = json.loads(path.read_text())
            values: dict[str, Any] = report["points"][report["chosen"]]["values"]
            good = report["met"] is (each == "best")
            cells = [
                name if each == "best" else "",
                made[each]["machines"],
                "",
                "",
                "",
                "met" if report["met"] else "missed",
            ]
            for number, part in enumerate(case.slo.split(",")):
                metric = part.split("<")[0]
                low, middle, high = (made[each][key].get(metric) for key in ("shorter", "values", "longer"))
                predicted = f"{show(metric, middle)} ({show(metric, low)} to {show(metric, high)})"
                told = [
                    f"{label_of(metric)} < {part.split('<')[1]}",
                    predicted,
                    show(metric, values.get(metric)),
                ]
                first = cells[:2] if number == 0 else ["", ""]
                last = cells[-1:] if number == 0 else [""]
                yield [*first, *told, *last], good


def table(arguments: argparse.Namespace, console: Console) -> int:
    shown = Table("target", "setting", "bound", "predicted", "measured", "", box=None, pad_edge=False)
    wrong = 0
    for cells, good in rows(arguments):
        wrong += not good
        shown.add_row(*cells[:-1], cells[-1] if good else f"{cells[-1]}: not as planned")
    console.print(shown)
    return int(wrong > 0)


def cases(arguments: argparse.Namespace) -> Iterator[tuple[str, Case]]:
    yield from ((name, case) for name, case in CASES.items() if arguments.only in (None, name))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2", help="alias, path or hf: reference")
    parser.add_argument(
        "--folder", type=Path, default=Path("build/plans"), help="for paces, plans and outcomes"
    )
    parser.add_argument("--stage", choices=("calibrate", "plan", "measure", "table", "all"), default="all")
    parser.add_argument("--only", choices=CASES, help="one of the targets")
    parser.add_argument("--repeats", type=int, default=1, help="measured runs of each setting")
    parser.add_argument("--port", type=int, default=18131, help="of the servers")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False, soft_wrap=True)
    stages = ("calibrate", "plan", "measure") if arguments.stage == "all" else (arguments.stage,)
    for stage in stages:
        {"calibrate": calibrate, "plan": plan, "measure": measure, "table": lambda *_: None}[stage](
            arguments, console
        )
    return table(arguments, console) if arguments.stage in ("measure", "table", "all") else 0


if __name__ == "__main__":
    sys.exit(main())
