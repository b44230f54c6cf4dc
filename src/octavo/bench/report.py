"""What a record says: its runs grouped by load, each with its measures, and what an SLO makes of them.

Everything here follows from the record (and from a target, a warm-up or prices that are given now), so that
`octavo bench report` says the same as the run did. Knows no terminal and no page.
"""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import dataclass, field, replace

from octavo.bench.cost import Bill, Cost, Work
from octavo.bench.definitions import definition
from octavo.bench.intervals import Interval, mean_interval
from octavo.bench.measures import Measures, measure
from octavo.bench.record import Record, Run
from octavo.bench.search import Found, conclude
from octavo.bench.shown import show_load
from octavo.bench.slo import Slo
from octavo.bench.trial import Trial
from octavo.bench.window import Window, choose, explicit
from octavo.errors import BenchError

__all__ = ["Point", "Report", "report"]


_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


@dataclass(frozen=True)
class Point:
    """All runs with one load."""

    rate: float | None
    clients: int | None
    runs: tuple[int, ...]
    """Their places in the record."""
    measures: tuple[Measures, ...]
    """One for each run."""
    trial: Trial[Measures] | None = None
    """What the runs say of the SLO, where there is one; only valid runs count."""

    @property
    def load(self) -> str:
        return show_load(self.rate, self.clients)

    @property
    def valid(self) -> bool:
        """Whether the measuring was sound and the server answered something, in each run."""
        return self.answered and all(one.valid for one in self.measures)

    @property
    def answered(self) -> bool:
        """Whether each run has a good answer."""
        return all(one.answered for one in self.measures)

    @property
    def met(self) -> bool | None:
        """Whether the runs meet the SLO; None without one, and where no run is valid."""
        if self.trial is None or self.trial.decision == "invalid":
            return None
        return self.trial.decision == "met" and not self.trial.missed

    @property
    def problems(self) -> list[str]:
        """Of all runs, each once: those that differ in their numbers alone are one, told of the first that has it."""
        alike: dict[str, list[tuple[int, str]]] = {}
        for place, one in enumerate(self.measures):
            for problem in dict.fromkeys(one.problems):
                alike.setdefault(_NUMBER.sub("#", problem), []).append((place, problem))
        found = []
        for told in alike.values():
            place, problem = told[0]
            same = len(told) == len(self.measures) and len({words for _, words in told}) == 1
            of = f" (run {place + 1}; so in {len({at for at, _ in told})} of {len(self.measures)} runs)"
            found.append(problem if same or len(self.measures) == 1 else f"{problem}{of}")
        return found

    def values(self, name: str) -> list[float]:
        """Of the runs that have the value."""
        return [value for one in self.measures if (value := one.value(name)) is not None]

    def value(self, name: str) -> float | None:
        """The mean over the runs."""
        values = self.values(name)
        return statistics.fmean(values) if values else None

    def interval(self, name: str) -> Interval | None:
        """Of the mean over runs, at 95 %, cut to what the value can be; None with fewer than two runs."""
        values = self.values(name)
        if len(values) < 2:
            return None
        interval = mean_interval(values)
        most = 1.0 if definition(name).unit == "share" else math.inf
        return replace(interval, low=max(interval.low, 0.0), high=min(interval.high, most))


@dataclass(frozen=True)
class Report:
    """A record and its numbers."""

    record: Record
    points: tuple[Point, ...]
    """By load, from the lowest; those without a rate in the record's order."""
    slo: Slo | None = None
    warmup_s: float | None = None
    found: Found[Measures] | None = None
    """The highest rate that meets the SLO, where several rates were tried."""
    bill: Bill | None = None
    """What the chosen load costs, where prices are given."""
    notes: tuple[str, ...] = field(default=())
    """What a reader of any of it must know, beside the measures' own problems."""

    @property
    def chosen(self) -> Point:
        """The load whose numbers stand for the whole: the highest that meets the SLO, else the lowest rate."""
        if self.found is not None and (trial := self.found.best or self.found.lowest) is not None:
            return next(point for point in self.points if point.rate == trial.rate)
        good = [point for point in self.points if point.met]
        open_ones = [point for point in self.points if point.rate is not None] or list(self.points)
        judged = [point for point in open_ones if point.met is not None]
        return good[-1] if good else (judged or open_ones)[0]

    @property
    def chosen_run(self) -> Run:
        """The one of its runs that is drawn: the first."""
        return self.record.runs[self.chosen.runs[0]]

    @property
    def problems(self) -> list[str]:
        """The chosen point's, with its load where there are several, and what holds for all."""
        load = f"{self.chosen.load}: " if len(self.points) > 1 else ""
        return [*(f"{load}{problem}" for problem in self.chosen.problems), *self.notes]

    @property
    def outcome(self) -> str | None:
        """What came of the SLO, a sentence; None without one, or where no run of one load is valid."""
        if self.slo is None:
            return None
        if self.found is not None:
            return str(self.found)
        chosen = self.chosen
        if chosen.met is None or chosen.trial is None:
            return None
        if len(self.points) > 1:
            if chosen.met:
                return f"{chosen.load} is the highest load that was tried and meets {self.slo}."
            return f"No load that was tried meets {self.slo}; at {chosen.load}: {chosen.trial.why}."
        missed = "; ".join(map(str, chosen.trial.missed))
        return (
            f"{self.slo} is met: {chosen.trial.why}." if chosen.met else f"{self.slo} is not met: {missed}."
        )

    @property
    def valid(self) -> bool:
        """Whether the chosen point is. In a search a point beyond what the client can do is no fault of the rest."""
        return self.chosen.valid

    @property
    def fault(self) -> str | None:
        """What to say before all else of a report that is not valid; None of a valid one."""
        if self.valid:
            return None
        if not self.chosen.answered:
            return "Not valid: the server gave no good answer."
        return "Not valid: the numbers are not what they say."


def report(
    record: Record, *, slo: Slo | None = None, warmup_s: float | None = None, cost: Cost | None = None
) -> Report:
    """Measure every run of a record.

    Raises BenchError for a record without a request, and InvalidParameter for a warm-up that leaves nothing.
    """
    if not any(run.exchanges for run in record.runs):
        raise BenchError("The record has no request: there is nothing to report.")
    target = slo if slo is not None and slo.requests else None
    groups: dict[tuple[float | None, int | None], list[int]] = {}
    for place, run in enumerate(record.runs):
        if run.exchanges:
            groups.setdefault((run.rate, run.clients), []).append(place)
    points = []
    for (rate, clients), places in groups.items():
        runs = [record.runs[place] for place in places]
        measured = tuple(measure(run, window=_window(run, warmup_s), slo=target) for run in runs)
        trial = None if slo is None else Trial.of(slo, rate, measured)
        points.append(Point(rate, clients, tuple(places), measured, trial))
    points.sort(key=lambda point: (point.rate or 0.0, point.clients or 0))
    made = Report(record, tuple(points), slo, warmup_s, _found(record, slo, points))
    return made if cost is None else replace(made, bill=cost.bill(Work.of(made.chosen)))


def _window(run: Run, warmup_s: float | None) -> Window:
    return choose(run) if warmup_s is None else explicit(run, warmup_s)


def _found(record: Record, slo: Slo | None, points: list[Point]) -> Found[Measures] | None:
    trials = [point.trial for point in points if point.rate is not None and point.trial is not None]
    if slo is None or len(trials) < 2:
        return None
    alone = next((point.trial for point in points if point.clients == 1), None)
    # The rates of a sweep were chosen by whoever asked for it: they are as near to each other as was wanted.
    tolerance = record.options.get("tolerance") if record.options.get("search") else None
    near = float(tolerance) if isinstance(tolerance, (int, float)) else math.inf
    return conclude(slo, trials, alone=alone, tolerance=near)
