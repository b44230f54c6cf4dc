"""What `octavo simulate` does once its options are read. Knows records and reports, no option."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import octavo
from octavo.bench.page import page
from octavo.bench.record import Record, Run
from octavo.bench.report import report
from octavo.bench.shown import label_of, show
from octavo.bench.slo import Slo
from octavo.bench.summary import print_summary
from octavo.cli.bench_run import check_writable
from octavo.config import RouterName
from octavo.errors import InvalidParameter
from octavo.simulation.cluster import Cluster
from octavo.simulation.deployment import Deployment
from octavo.simulation.replica import Replica
from octavo.simulation.roofline import EFFICIENCIES
from octavo.simulation.routers import router_named
from octavo.simulation.run import simulate
from octavo.timing.clock import ManualClock
from octavo.workload.arrivals import Closed
from octavo.workload.generate import requests_of
from octavo.workload.spec import Workload, load_workload

__all__ = ["Asked", "run"]

_WORDS = {"high": "kernels reach most", "typical": "typical", "low": "little"}
_NOT_MET, _NOT_VALID = 1, 3
_SHOWN_EVERY = 500
"""Steps between two looks at the progress."""


@dataclass(frozen=True)
class Asked:
    """The command line."""

    workload: str
    rate: float | None
    requests: int | None
    seed: int | None
    deployment: Deployment
    replicas: int
    router: RouterName
    slo: str | None
    output: Path | None
    html: Path | None


def run(asked: Asked, console: Console) -> int:
    """Simulate, write and print; return the exit code: 1 where the SLO is not met, 3 where nothing was answered. Raises
    ClientError."""
    slo = None if asked.slo is None else Slo.parse(asked.slo)
    workload = _workload(asked)
    facts = asked.deployment.facts()
    if asked.output is not None and asked.output == asked.html:
        raise InvalidParameter(f"--output and --html are both {asked.output}; one would overwrite the other.")
    for path in (asked.output, asked.html):
        if path is not None:
            check_writable(path)
    for fact, words in facts:
        console.print(f"{fact:>15}  {words}", markup=False)
    console.print()
    runs = {name: _run(asked, workload, name) for name in EFFICIENCIES}
    made = report(_record(asked, workload, runs["typical"]), slo=slo)
    if asked.output is not None:
        made.record.write(asked.output)
    print_summary(made, console)
    console.print()
    console.print(_range({name: _record(asked, workload, one) for name, one in runs.items()}))
    if asked.html is not None:
        asked.html.write_text(page(made).html(), encoding="utf-8")
    if not made.valid:
        return _NOT_VALID
    return _NOT_MET if made.chosen.met is False else 0


def _workload(asked: Asked) -> Workload:
    workload = load_workload(asked.workload)
    changes: dict[str, Any] = {"seed": asked.seed, "requests": asked.requests}
    workload = msgspec.structs.replace(
        workload, **{key: value for key, value in changes.items() if value is not None}
    )
    return workload if asked.rate is None else workload.at_rate(asked.rate)


def _run(asked: Asked, workload: Workload, efficiency: str) -> Run:
    """With one assumption of how much of its peaks the machine reaches."""
    pace = asked.deployment.pace_with(EFFICIENCIES[efficiency])
    replicas = [Replica(asked.deployment.settings, pace, ManualClock()) for _ in range(asked.replicas)]
    clients = workload.arrivals.clients if isinstance(workload.arrivals, Closed) else None
    with _progress(_WORDS[efficiency], workload.requests) as told:
        return simulate(
            Cluster(replicas, router_named(asked.router)),
            requests_of(workload),
            clients=clients,
            seed=workload.seed,
            rate=getattr(workload.arrivals, "rate", None),
            on_progress=told,
        )


@contextmanager
def _progress(words: str, requests: int | None) -> Iterator[Callable[[int, float], None]]:
    """A bar on the terminal, if standard error is one."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[at]}"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    # No thread of its own draws it: while time is virtual it would be told a wrong one.
    with Progress(
        *columns, console=console, transient=True, auto_refresh=False, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task(words, total=requests, at="")
        steps = 0

        def told(done: int, now_s: float) -> None:
            nonlocal steps
            steps += 1
            if steps % _SHOWN_EVERY == 0:
                bar.update(task, completed=done, at=f"{done:,} requests, {now_s:,.0f} s", refresh=True)

        yield told


def _record(asked: Asked, workload: Workload, run: Run) -> Record:
    deployment = asked.deployment
    options = {"replicas": asked.replicas, "router": asked.router, "slo": asked.slo}
    return Record(
        octavo=octavo.__version__,
        url="simulated",
        model=deployment.model,
        api="completions",
        server=f"octavo {octavo.__version__}, simulated, uncalibrated",
        machine={
            "hardware": deployment.hardware,
            "accelerators": deployment.tensor_parallel,
            "replicas": asked.replicas,
        },
        name=asked.workload,
        workload=msgspec.to_builtins(workload),
        options={**msgspec.to_builtins(deployment), **options},
        runs=[run],
    )


def _range(records: dict[str, Record]) -> Table:
    heads = [_WORDS[name] for name in ("high", "typical", "low")]
    table = Table("uncalibrated: a range", *heads, box=None, pad_edge=False)
    measures = [report(records[name]).chosen.measures[0] for name in ("high", "typical", "low")]
    for name in ("ttft_p50", "ttft_p99", "itl_p50", "itl_p99", "e2e_p50", "output_rate", "busy_share"):
        table.add_row(label_of(name), *(show(name, one.value(name)) for one in measures))
    return table
