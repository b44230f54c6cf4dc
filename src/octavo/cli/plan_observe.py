"""`octavo plan --observe`: watch a running server, and say which option to change. Knows a terminal and processes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from octavo.bench.slo import Slo
from octavo.bench.watched import Watched, observe
from octavo.cli.processes import processes
from octavo.cli.results import NOT_MET, NOT_VALID, check_outputs, key_in
from octavo.cli.signals import Signals
from octavo.planning.observation import Observation, consider
from octavo.planning.observation_page import observation_page
from octavo.planning.observation_words import (
    advice_lines,
    brings,
    check_rows,
    remedy_heads,
    remedy_rows,
    settings_words,
    verdict,
)
from octavo.planning.rehearsal import Rehearsal, Rehearsed, rehearse
from octavo.planning.remedies import SHOWN

__all__ = ["AskedOf", "look_at"]

_NARROW = tuple(name for name in SHOWN if name != "ttft_p50")
"""What the lines of a terminal have room for."""


@dataclass(frozen=True, kw_only=True)
class AskedOf:
    """The command line."""

    url: str
    for_s: float
    key_env: str | None
    insecure: bool
    slo: str | None
    seeds: int
    workers: int | None
    html: Path | None
    json: bool


def look_at(asked: AskedOf) -> int:
    """Watch, simulate, print and write; return the exit code: 1 where a target is not met and no option meets it, 3
    where the simulation is too far off. Raises ClientError."""
    slo = None if asked.slo is None else Slo.parse(asked.slo)
    check_outputs(None, asked.html)
    with Signals() as signals:
        watched = asyncio.run(_watched(asked, key_in(asked.key_env), signals))
        signals.over()
    told = _considered(asked, watched, slo)
    if asked.html is not None:
        asked.html.write_text(observation_page(told).html(), encoding="utf-8")
    if asked.json:
        whole = {"verdict": verdict(told), **msgspec.to_builtins(told)}
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(whole), indent=1).decode() + "\n")
    else:
        _print(told, Console(highlight=False, emoji=False))
    if not told.trusted:
        return NOT_VALID
    met = told.meets is not False or (told.best is not None and told.best.meets)
    return 0 if met else NOT_MET


async def _watched(asked: AskedOf, key: str | None, signals: Signals) -> Watched:
    """A first Ctrl-C ends the watch, and what there is counts."""
    stop = asyncio.Event()
    signals.gently(stop.set)
    with _bar() as bar:
        task = bar.add_task("watching", total=asked.for_s)

        def told(seconds: float, answers: int) -> None:
            bar.update(task, completed=seconds, description=f"watching, {answers:,} answers")

        return await observe(asked.url, asked.for_s, key=key, insecure=asked.insecure, stop=stop, told=told)


def _considered(asked: AskedOf, watched: Watched, slo: Slo | None) -> Observation:
    with _bar() as bar, processes(asked.workers) as (executor, _):
        return consider(watched, slo, _Runner(executor, bar), draws=asked.seeds)


class _Runner:
    """Runs what it is given beside each other, and shows how far it is."""

    def __init__(self, executor: Executor, bar: Progress) -> None:
        self._executor, self._bar = executor, bar

    def __call__(self, asked: Sequence[Rehearsal], words: str) -> list[Rehearsed]:
        task = self._bar.add_task(f"simulating {words}", total=len(asked))
        waiting = [self._executor.submit(rehearse, one) for one in asked]
        found = []
        for one in waiting:
            found.append(one.result())
            self._bar.update(task, completed=len(found))
        self._bar.remove_task(task)
        return found


@contextmanager
def _bar() -> Iterator[Progress]:
    """On the terminal, if standard error is one."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        yield bar


def _print(told: Observation, console: Console) -> None:
    console.print(
        f"{told.model} at {told.url}, watched for {told.length_s:.0f} s: {settings_words(told)}.",
        markup=False,
    )
    for name, words in told.load:
        console.print(f"  {name}: {words}", markup=False)
    console.print()
    console.print(verdict(told), markup=False, style="bold" if told.trusted else "bold red")
    if told.best is not None:
        for line in brings(told.best):
            console.print(f"  {line}", markup=False)
    for line in advice_lines(told):
        console.print(f"· {line}", markup=False)
    console.print()
    check = Table("the server as it is", "watched", "simulated", "difference", box=None, pad_edge=False)
    for row in check_rows(told):
        check.add_row(*row)
    console.print(check)
    if told.remedies:
        table = Table("one option changed", *remedy_heads(_NARROW), "", box=None, pad_edge=False)
        for row in remedy_rows(told, _NARROW):
            table.add_row(*row)
        console.print()
        console.print(table)
    console.print(f"\n{told.simulations:,} simulations of the load that was watched.")
