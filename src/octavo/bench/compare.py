"""Whether one record is worse than another, beyond what repeated runs differ by anyway. Knows metrics and statistics.

Each run gives one value of each metric, and the runs of one load are what is compared: their means, by Welch's test,
or in pairs where both have the same seeds and there are five runs at least (a seed decides what is asked when, so a
pair has that in common). Times and rates are compared by ratio, on logarithms; shares by difference.

A metric is worse where chance is excluded and the difference matters: with Holm's correction over all that is compared
the chance of even one false "worse" is 5 %, and neither less than the threshold nor what has no change in its 95 %
interval is ever worse. A rate that is 0 in every run of one side has no spread of its ratio: it is gone, or is new. A
metric is the same where the whole interval is within the threshold. All else is unclear: more runs would tell. With a
single run on either side there is no spread between runs to compare with, so nothing is better or worse; how far the
two differ within these runs is told by a bootstrap over their sessions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from octavo.bench.alike import Unlike, differences
from octavo.bench.definitions import definition
from octavo.bench.intervals import Difference, Interval, holm, paired, quantile_of, welch
from octavo.bench.measures import Measures, measure
from octavo.bench.record import Record, Run
from octavo.bench.resampled import resampled
from octavo.bench.shown import label_of, show, show_load
from octavo.bench.slo import Slo
from octavo.errors import BenchError, InvalidParameter

__all__ = ["HEADLINE", "Compared", "Comparison", "compare"]

HEADLINE = (
    "ttft_p50", "ttft_p99", "tpot_p50", "itl_p99", "e2e_p50", "e2e_p99", "output_rate", "goodput", "error_share",
)  # fmt: skip
"""What is compared: each further metric makes a difference of any other harder to tell from chance."""

Method = Literal["runs", "pairs of runs", "sessions", "none"]
Word = Literal["better", "worse", "same", "unclear"]
Load = tuple[float | None, int | None]

_PAIRS = 5
_ALPHA = 0.05


@dataclass(frozen=True)
class Compared:
    """One metric at one load."""

    name: str
    load: str
    a: float
    """The mean over the runs; seconds, per second, or a share."""
    b: float
    change: Interval
    """From a to b: of times and rates (b − a) / a, never below −1, and infinite where only a is 0; of shares b − a,
    so that b is from 0 to 1. Infinite ends where nothing is known."""
    method: Method
    """What the interval is from: several runs, pairs of them, or the sessions of single runs."""
    p_worse: float
    """The chance of such a change for the worse if there were none, over all that is compared (Holm)."""
    p_better: float
    word: Word

    @property
    def ratio(self) -> float | None:
        """b / a."""
        return self.b / self.a if self.a else None

    def __str__(self) -> str:
        share = definition(self.name).unit == "share"
        more = self.change.estimate >= 0.0
        within = (
            f" ({_percent(self.change.low)} to {_percent(self.change.high)})" if self.method != "none" else ""
        )
        points = " points" if share else ""
        change = f"{_percent(abs(self.change.estimate), sign=False)}{points} {'higher' if more else 'lower'}{within}"
        values = f"{show(self.name, self.a)}, now {show(self.name, self.b)}"
        if not share and min(self.a, self.b) <= 0.0 < max(self.a, self.b):
            return f"{label_of(self.name)} at {self.load} is {'gone' if self.a else 'new'}: {values}"
        return f"{label_of(self.name)} at {self.load} is {change}: {values}"


@dataclass(frozen=True)
class Comparison:
    """Of record a, the base, and b."""

    rows: tuple[Compared, ...]
    unlike: tuple[Unlike, ...]
    notes: tuple[str, ...]
    regression: bool | None
    """Whether something is worse. None: it cannot be said, since there are single runs only."""
    threshold: float

    @property
    def worse(self) -> tuple[Compared, ...]:
        return tuple(row for row in self.rows if row.word == "worse")

    @property
    def better(self) -> tuple[Compared, ...]:
        return tuple(row for row in self.rows if row.word == "better")

    def __str__(self) -> str:
        """One sentence."""
        if self.regression is None:
            return "Whether it is a regression cannot be said from single runs; measure both with repeats of 3 or more."
        if self.regression:
            return f"Regression: {'; '.join(map(str, self.worse))}."
        unclear = sum(row.word == "unclear" for row in self.rows)
        open_ = (
            f", but {unclear} of {len(self.rows)} values are unclear; more runs would tell" if unclear else ""
        )
        better = f" Better: {'; '.join(map(str, self.better))}." if self.better else ""
        return f"No regression beyond what runs differ by anyway{open_}.{better}"


def compare(
    a: Record,
    b: Record,
    *,
    threshold: float = 0.02,
    points: float = 0.01,
    slo: Slo | None = None,
    anyway: bool = False,
    level: float = 0.95,
) -> Comparison:
    """Load by load, over `HEADLINE`.

    `threshold` is the least change of times and rates that matters, as a ratio; `points` that of shares, as a
    difference. `goodput` is compared where `slo` says what is good. Raises BenchError where the two have no load in
    common, or did not have the same to do (`anyway` makes that a note); InvalidParameter for a threshold that makes no
    sense.
    """
    for name, value in (("threshold", threshold), ("points", points)):
        if not 0.0 <= value < 1.0:
            raise InvalidParameter(f"{name} is {value:g}; it is from 0 % to below 100 %.", name)
    unlike = differences(a, b)
    if unlike and unlike[0].serious and not anyway:
        raise BenchError(
            f"The two records cannot be compared: {unlike[0]}; measure both with the same workload and API."
        )
    notes: list[str] = []
    sides = [_by_load(record, slo, word, notes) for record, word in ((a, "first"), (b, "second"))]
    common = [load for load in sides[0] if load in sides[1]]
    if not common:
        told = [", ".join(show_load(*load) for load in side) or "none that is valid" for side in sides]
        raise BenchError(
            f"The two records have no load in common: the first has {told[0]}, the second {told[1]}; "
            "measure both at the same rates."
        )
    for side, other, word in ((sides[0], sides[1], "first"), (sides[1], sides[0], "second")):
        if alone := [show_load(*load) for load in side if load not in other]:
            notes.append(f"Only the {word} record has {', '.join(alone)}.")
    rows: list[Compared] = []
    for load in sorted(common, key=lambda one: (one[0] or 0.0, one[1] or 0)):
        runs, others = sides[0][load], sides[1][load]
        if min(len(runs), len(others)) < 2:
            notes.append(
                f"At {show_load(*load)} there is a single run: how much runs differ by themselves is not known."
            )
        if {run.seed for run, _ in runs} != {run.seed for run, _ in others}:
            notes.append(
                f"At {show_load(*load)} the seeds differ, so the two did not have the very same requests."
            )
        rows += _rows(show_load(*load), runs, others, slo, level)
        notes += _alone(show_load(*load), runs, others)
    rows = _judged(rows, threshold, points)
    single = all(row.method in ("sessions", "none") for row in rows)
    regression = None if single else any(row.word == "worse" for row in rows)
    return Comparison(tuple(rows), tuple(unlike), tuple(notes), regression, threshold)


_Measured = tuple[Run, Measures]


def _by_load(record: Record, slo: Slo | None, word: str, notes: list[str]) -> dict[Load, list[_Measured]]:
    found: dict[Load, list[_Measured]] = {}
    left_out = 0
    for run in record.runs:
        measures = measure(run, slo=slo)
        if measures.valid and run.exchanges:
            found.setdefault((run.rate, run.clients), []).append((run, measures))
        else:
            left_out += 1
    if left_out:
        notes.append(
            f"{left_out} of the {word} record's {len(record.runs)} runs are not valid and are left out."
        )
    return found


def _rows(
    load: str, runs: Sequence[_Measured], others: Sequence[_Measured], slo: Slo | None, level: float
) -> list[Compared]:
    single = min(len(runs), len(others)) < 2
    found = []
    for name in HEADLINE:
        if name == "goodput" and (slo is None or not slo.requests):
            continue
        a, b = _values(runs, name), _values(others, name)
        if not a or not b:
            continue
        change = _of_sessions(runs, others, name, slo) if single else _of_runs(runs, others, name, level)
        method: Method = "none"
        if change is not None:
            method = "sessions" if single else "pairs of runs" if _pairs(runs, others) else "runs"
        found.append(_row(name, load, a, b, change, method, level))
    return found


def _alone(load: str, runs: Sequence[_Measured], others: Sequence[_Measured]) -> list[str]:
    """Why there is no row for what only one of the two has."""
    found = []
    for side, other, word, its in ((runs, others, "first", "second"), (others, runs, "second", "first")):
        names = [label_of(name) for name in HEADLINE if _values(side, name) and not _values(other, name)]
        if names:
            good = (
                any(_values(other, "output_rate")) and min(_values(other, "error_share"), default=1.0) < 1.0
            )
            why = "" if good else f": the {its} has no good answer, and only these have latencies"
            found.append(f"At {load} only the {word} record has {', '.join(names)}{why}.")
    return found


def _row(
    name: str,
    load: str,
    a: list[float],
    b: list[float],
    change: Difference | None,
    method: Method,
    level: float,
) -> Compared:
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    if change is not None and definition(name).unit != "share" and min(mean_a, mean_b) <= 0.0:
        # Every run of one side has 0. Their ratio is the same whichever runs are set against each other.
        ratio = 1.0 if not mean_b and not mean_a else mean_b / mean_a if mean_a else math.inf
        step = ratio - 1.0
        change = Difference(Interval(step, step, step, level), float(step <= 0), float(step >= 0), math.inf)
        interval, p_above, p_below = change.interval, change.p_above, change.p_below
    elif change is None:
        estimate = _step(name, mean_a, mean_b)
        interval, p_above, p_below = Interval(estimate, -math.inf, math.inf, level), 1.0, 1.0
    else:
        interval, p_above, p_below = change.interval, change.p_above, change.p_below
        if not _plain(name, [*a, *b]):
            low, middle, high = (math.expm1(one) for one in (interval.low, interval.estimate, interval.high))
            interval = Interval(middle, low, high, level)
        elif definition(name).unit == "share":
            low, high = max(interval.low, -mean_a), min(interval.high, 1.0 - mean_a)
            interval = replace(interval, low=min(low, interval.estimate), high=max(high, interval.estimate))
        elif mean_a:
            low, middle, high = (one / mean_a for one in (interval.low, interval.estimate, interval.high))
            interval = Interval(middle, max(low, -1.0), high, level)  # what is lost is at most all of it
    worse, better = (p_below, p_above) if definition(name).better == "higher" else (p_above, p_below)
    return Compared(name, load, mean_a, mean_b, interval, method, worse, better, "unclear")


def _judged(rows: Sequence[Compared], threshold: float, points: float) -> list[Compared]:
    """With Holm's correction, and words."""
    worse, better = holm([row.p_worse for row in rows]), holm([row.p_better for row in rows])
    found = []
    for row, p_worse, p_better in zip(rows, worse, better, strict=True):
        least = points if definition(row.name).unit == "share" else threshold
        word: Word = "unclear"
        if row.method in ("runs", "pairs of runs"):
            # The tests are one-sided at 5 %, the interval at 2.5 %: a word must not contradict what is shown.
            matters = abs(row.change.estimate) > least and 0.0 not in row.change
            if matters and min(p_worse, p_better) < _ALPHA:
                word = "worse" if p_worse < p_better else "better"
            elif -least <= row.change.low and row.change.high <= least:
                word = "same"
        found.append(replace(row, p_worse=p_worse, p_better=p_better, word=word))
    return found


def _pairs(runs: Sequence[_Measured], others: Sequence[_Measured]) -> bool:
    """Whether each run has its partner, enough of them that the pairs' fewer degrees of freedom are made up for."""
    seeds, partners = [run.seed for run, _ in runs], [run.seed for run, _ in others]
    return len(seeds) >= _PAIRS and len(set(seeds)) == len(seeds) and sorted(seeds) == sorted(partners)


def _of_runs(
    runs: Sequence[_Measured], others: Sequence[_Measured], name: str, level: float
) -> Difference | None:
    a, b = _values(runs, name), _values(others, name)
    step = _scale(name, [*a, *b])
    if _pairs(runs, others) and len(a) == len(runs) and len(b) == len(others):
        order_a = sorted(zip((run.seed for run, _ in runs), a, strict=True))
        order_b = sorted(zip((run.seed for run, _ in others), b, strict=True))
        return paired([step(value) for _, value in order_a], [step(value) for _, value in order_b], level)
    if min(len(a), len(b)) < 2:
        return None
    return welch([step(value) for value in a], [step(value) for value in b], level)


def _of_sessions(
    runs: Sequence[_Measured], others: Sequence[_Measured], name: str, slo: Slo | None
) -> Difference | None:
    """Between the first run of each, as if sessions were drawn again."""
    a, b = (resampled(run, measures.window, name, slo) for run, measures in (runs[0], others[0]))
    if not a or not b:
        return None
    step = _scale(name, [*a, *b])
    count = min(len(a), len(b))
    # Both are sorted. A lattice meets each of a's with every part of b's, as independent draws would.
    stride = next(one for one in range(round(0.618 * count), 2 * count + 2) if math.gcd(one, count) == 1)
    apart = sorted(step(b[place * stride % count]) - step(a[place]) for place in range(count))
    middle = quantile_of(apart, 0.5)
    interval = Interval(middle, quantile_of(apart, 0.025), quantile_of(apart, 0.975), 0.95)
    above = (1 + sum(one <= 0.0 for one in apart)) / (count + 1)
    below = (1 + sum(one >= 0.0 for one in apart)) / (count + 1)
    return Difference(interval, above, below, math.inf)


def _values(runs: Sequence[_Measured], name: str) -> list[float]:
    return [value for _, measures in runs if (value := measures.value(name)) is not None]


def _plain(name: str, values: Sequence[float]) -> bool:
    """Whether values are compared as they are: shares, and what has a 0, which has no logarithm."""
    return definition(name).unit == "share" or min(values) <= 0.0


def _scale(name: str, values: Sequence[float]) -> Callable[[float], float]:
    return (lambda value: value) if _plain(name, values) else math.log


def _step(name: str, a: float, b: float) -> float:
    return b - a if definition(name).unit == "share" or not a else b / a - 1.0


def _percent(value: float, *, sign: bool = True) -> str:
    return f"{100.0 * value:{'+' if sign else ''}.1f} %"
