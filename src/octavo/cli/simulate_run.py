"""What `octavo simulate` does once its options are read. Knows records and reports, no option."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import octavo
from octavo.bench.measures import Measures, measure
from octavo.bench.memory import memory_rows
from octavo.bench.page import page
from octavo.bench.record import SIMULATED, Record, Run
from octavo.bench.report import report
from octavo.bench.shown import label_of, show
from octavo.bench.slo import Slo
from octavo.bench.summary import print_summary
from octavo.cli.results import changed_workload, check_outputs, exit_code
from octavo.cli.simulate_beside import beside
from octavo.cli.simulate_fleet import Fleet, places_table
from octavo.cli.simulate_naive import compare
from octavo.cli.simulate_served import TYPICAL, Served, served
from octavo.cli.simulate_steps import (
    Seen,
    Window,
    parse_window,
    print_gantt,
    seen_window,
    with_steps,
    write_steps,
)
from octavo.engine.recorder import Recorder
from octavo.errors import InvalidParameter
from octavo.simulation.asking import Asking
from octavo.simulation.deployment import Deployment
from octavo.simulation.disaggregated import receiving
from octavo.simulation.fit import fit
from octavo.simulation.ledger import Place
from octavo.simulation.replica import VOCABULARY, Replica
from octavo.simulation.run import simulate
from octavo.telemetry.timeline import Timeline
from octavo.timing.clock import ManualClock
from octavo.workload.generate import requests_of
from octavo.workload.spec import Workload

__all__ = ["Asked", "run"]

_WORDS = {"high": "kernels reach most", "typical": "typical", "low": "little"}
_LONG_STEP_US = 2_000_000
"""A step in which a window begins began so long before it at most."""


@dataclass(frozen=True)
class Asked:
    """The command line."""

    workload: str
    rate: float | None
    cv: float | None
    requests: int | None
    seed: int | None
    deployment: Deployment
    pace: Path | None
    given: frozenset[str]
    """Options that were typed."""
    asking: Asking
    fleet: Fleet
    compare_naive: bool
    allow_refused: bool
    slo: str | None
    output: Path | None
    html: Path | None
    gantt: str | None
    steps: Path | None


def run(asked: Asked, console: Console) -> int:
    """Simulate, write and print; return the exit code: 1 where the SLO is not met, 3 where nothing was answered. Raises
    ClientError."""
    slo = None if asked.slo is None else Slo.parse(asked.slo)
    workload = changed_workload(asked.workload, seed=asked.seed, requests=asked.requests, rate=asked.rate)
    if asked.cv is not None:
        workload = workload.at_cv(asked.cv)
    if asked.compare_naive and (
        asked.fleet.replicas > 1 or asked.slo or asked.output or asked.html or asked.gantt or asked.steps
    ):
        raise InvalidParameter(
            "--compare-naive prints a table about one server; leave --replicas, --slo, --output, --html, --gantt and "
            "--steps out."
        )
    source = served(asked.deployment, asked.pace, asked.given)
    if asked.compare_naive and source.calibrated:
        raise InvalidParameter("--compare-naive is about a machine of the catalogue; leave out the pace.")
    facts = [*source.facts, *asked.fleet.facts()]
    asked.fleet.failures(workload.seed)  # what is wrong with them is said before the run
    asked.fleet.check(asked.asking, source.kv_bytes_per_token)
    window = parse_window(asked.gantt)
    check_outputs(asked.output, asked.html)
    check_outputs(asked.steps, None)
    if asked.steps is not None and asked.steps in (asked.output, asked.html):
        raise InvalidParameter(f"--steps is {asked.steps}, as another file; one would overwrite the other.")
    capacity = source.settings.capacity(VOCABULARY)
    fits = fit(requests_of(workload), capacity, asked.asking, allow_refused=asked.allow_refused)
    if (unfit := fits.words()) is not None:
        facts.append(("not all", unfit))
    for fact, words in facts:
        console.print(f"{fact:>15}  {words}", markup=False)
    console.print()
    if asked.compare_naive:
        compare(asked.deployment, asked.asking, workload, console)
        return 0
    ends = [name for name in source.paces if name != TYPICAL]
    with beside(ends, partial(_measured, asked, workload, source), fits.requests) as told:
        done, places = _run(asked, workload, source, TYPICAL)
        made = report(_record(asked, workload, source, done), slo=slo)
        measured = told()
    warnings = source.warnings()
    if asked.output is not None:
        made.record.write(asked.output)
    print_summary(made, console)
    for sentence in warnings:
        console.print(f"\n{sentence}", markup=False, style="yellow")
    if not source.calibrated:
        console.print()
        measured[TYPICAL] = made.chosen.measures[0]
        console.print(_range(measured))
    console.print()
    console.print(_memory(made.chosen_run))
    if len(places) > 1:
        console.print()
        console.print(places_table(asked.fleet, places))
    if asked.gantt is not None or asked.html is not None:
        seen = _seen(asked, workload, source, made.chosen_run, window)
        if asked.gantt is not None:
            console.print()
            print_gantt(seen, console)
        if asked.html is not None:
            asked.html.write_text(with_steps(page(made), seen).html(), encoding="utf-8")
    if asked.steps is not None:
        _write_steps(asked, workload, source, window, console)
    return exit_code(made)


def _measured(asked: Asked, workload: Workload, source: Served, pace: str) -> Measures:
    return measure(_run(asked, workload, source, pace).run)


def _seen(asked: Asked, workload: Workload, source: Served, done: Run, asked_for: Window | None) -> Seen:
    """The typical run once more, and watched: it is the same to the last byte, and only the window is kept."""
    window, stall = seen_window(done, asked_for)
    timeline = Timeline()
    before_us = _LONG_STEP_US if stall is None else max(stall.length_us, _LONG_STEP_US)
    _run(
        asked,
        workload,
        source,
        TYPICAL,
        watch=(timeline, max(window.from_us - before_us, 0), window.until_us),
    )
    return Seen(window, timeline, stall)


def _write_steps(
    asked: Asked, workload: Workload, source: Served, window: Window | None, console: Console
) -> None:
    """Of the window, or of the whole run: its last steps, where they are too many."""
    timeline = Timeline()
    _run(asked, workload, source, TYPICAL, watch=(timeline, *(window or (0, None))))
    assert asked.steps is not None
    write_steps(asked.steps, timeline)
    if timeline.forgotten:
        console.print(
            f"{asked.steps} has the last {len(timeline):,} steps, and {timeline.forgotten:,} before are left out; "
            "--gantt FROM:TO chooses others.",
            markup=False,
        )


def _run(
    asked: Asked,
    workload: Workload,
    source: Served,
    pace: str,
    *,
    watch: tuple[Timeline, int, int | None] | None = None,
) -> _Done:
    """With one of the paces. `watch`: what gets the steps, from and until when, in microseconds."""
    paces = source.paces[pace]

    def start(place: int, *, receives: bool = False) -> Replica:
        return Replica(
            receiving(source.settings) if receives else source.settings,
            paces.pace,
            ManualClock(),
            guessing=asked.deployment.guessing,
            draft_pace=paces.draft,
            receives=receives,
            recorder=_recorder(watch, place),
        )

    cluster = asked.fleet.cluster(start, workload.seed, source.kv_bytes_per_token)
    with _progress("simulated" if source.calibrated else _WORDS[pace], workload.requests) as told:
        done = simulate(
            cluster,
            requests_of(workload),
            asking=asked.asking,
            host=source.host,
            clients=workload.clients,
            seed=workload.seed,
            rate=workload.rate,
            compact=True,
            on_progress=told,
        )
    return _Done(done, cluster.places(done.end_us))


class _Done(NamedTuple):
    """A run, and what each server did in it."""

    run: Run
    places: list[Place]


def _recorder(watch: tuple[Timeline, int, int | None] | None, replica: int) -> Recorder | None:
    if watch is None:
        return None
    timeline, from_us, until_us = watch
    return Recorder(timeline, replica=replica, from_us=from_us, until_us=until_us)


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
    beside_another = multiprocessing.parent_process() is not None
    # No thread of its own draws it: while time is virtual it would be told a wrong one.
    with Progress(
        *columns,
        console=console,
        transient=True,
        auto_refresh=False,
        disable=beside_another or not sys.stderr.isatty(),
    ) as bar:
        task = bar.add_task(words, total=requests, at="")

        def told(done: int, now_s: float) -> None:
            bar.update(task, completed=done, at=f"{done:,} requests, {now_s:,.0f} s", refresh=True)

        yield told


def _record(asked: Asked, workload: Workload, source: Served, run: Run) -> Record:
    deployment = asked.deployment
    options = {**msgspec.to_builtins(asked.fleet), "slo": asked.slo}
    return Record(
        octavo=octavo.__version__,
        url=SIMULATED,
        model=source.model,
        api="completions",
        server=f"octavo {octavo.__version__}, simulated, {source.words}",
        machine={
            "hardware": source.hardware,
            "accelerators": deployment.tensor_parallel,
            "replicas": asked.fleet.replicas,
        },
        name=asked.workload,
        workload=msgspec.to_builtins(workload),
        options={**msgspec.to_builtins(deployment), **msgspec.to_builtins(asked.asking), **options},
        runs=[run],
    )


def _memory(run: Run) -> Table:
    table = Table("KV memory and steps", "", box=None, pad_edge=False)
    for words, value in memory_rows(run.memory):
        table.add_row(words, value)
    return table


def _range(measures: dict[str, Measures]) -> Table:
    table = Table("uncalibrated: a range", *_WORDS.values(), box=None, pad_edge=False)
    for name in ("ttft_p50", "ttft_p99", "itl_p50", "itl_p99", "e2e_p50", "output_rate", "busy_share"):
        table.add_row(label_of(name), *(show(name, measures[key].value(name)) for key in _WORDS))
    return table
