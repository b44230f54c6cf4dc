"""The highest rate that meets an SLO. Knows trials and their order; a run is made by a function that it is given.

1. One request at a time. What is not met then is met at no rate.
2. The rate doubles until a trial surely does not meet the SLO, and halves until one surely does.
3. Bisection on the logarithm of the rate, until the two are within the tolerance. Each trial has as many runs as it
   takes to be sure, within limits (`octavo.bench.trial`), each with a seed of its own, so that no prompt of a run is in
   the server's cache from the one before.
4. The best rate is confirmed with all its repeats. Should they say otherwise, the search goes on below it.

So the best rate is one that was itself run and met. Beside it stands an estimate of where the bound is crossed, with
its interval (`octavo.bench.crossing`). A server that falls behind does not meet an SLO, even where a short run stays
within the bounds (`octavo.bench.backlog`).
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, Literal

from octavo.bench.crossing import crossing
from octavo.bench.intervals import Interval
from octavo.bench.slo import Slo
from octavo.bench.trial import M, Trial
from octavo.errors import BenchError, InvalidParameter

__all__ = ["Found", "Progress", "conclude", "rounded", "search"]

Phase = Literal["one at a time", "growing", "narrowing", "confirming", "sweeping"]

_LEAST_SHARE = 1.0 / 1024.0
"""Of the first rate: below it no rate is tried."""


@dataclass(frozen=True)
class Progress:
    """What is about to run."""

    phase: Phase
    rate: float | None
    run: int
    """Which run at this rate, from 1."""
    low: float | None
    """The highest rate so far that meets the SLO."""
    high: float | None
    """The lowest so far that does not."""
    runs: int
    """Done before, at all rates."""


@dataclass(frozen=True)
class Found(Generic[M]):
    """What came of a search. It follows from the trials alone, so it can be made again from a record."""

    slo: Slo
    alone: Trial[M] | None
    trials: tuple[Trial[M], ...]
    """By rate."""
    best: Trial[M] | None
    """The highest rate that meets the SLO, itself run; None: none does."""
    above: Trial[M] | None
    """The lowest rate above it that was tried; None: `best` is the highest that was tried."""
    rate: Interval | None
    """Where the bound is crossed, and within what: the truth is in it 19 times of 20. None where nothing is above."""
    ended: Literal["narrow", "highest", "client", "runs", "none"]
    """Why it ended: the rates are within the tolerance; the highest rate that may be tried is met; above `best` the
    measuring process could not keep up; the runs were used up; no rate is met."""

    def __str__(self) -> str:
        """One sentence."""
        if self.best is None or self.best.rate is None:
            return self._none()
        if self.best.missed:
            return (
                f"No rate meets all of {self.slo}: {self.best.rate:g} a second is the highest that keeps its upper "
                f"bounds, and there it is {'; '.join(map(str, self.best.missed))}."
            )
        text = f"{self.best.rate:g} a second meet {self.slo}"
        if self.above is None:
            return f"{text}; it is the highest rate that was tried."
        if self.ended == "client":
            return f"{text}; at {self.above.rate:g} the measuring itself failed ({self.above.why})."
        within = (
            f" (estimate {self.rate.estimate:.3g}, {self.rate.low:.3g} to {self.rate.high:.3g})"
            if self.rate
            else ""
        )
        narrow = "" if self.ended == "narrow" else "; the runs were used up before the tolerance was reached"
        return f"{text}{within}; {self.above.rate:g} do not: {self.above.why}{narrow}."

    @property
    def lowest(self) -> Trial[M] | None:
        """The lowest rate that does not meet the SLO; where none was judged, the lowest that was tried."""
        return next((one for one in self.trials if one.decision == "not met"), next(iter(self.trials), None))

    def _none(self) -> str:
        """Why no rate is the best."""
        lowest = self.lowest
        if lowest is None or lowest.rate is None:
            return f"No rate that was tried meets {self.slo}."
        if lowest.decision == "invalid":
            return f"No rate could be measured, so none is judged by {self.slo}: {lowest.why}."
        lucky = [f"{one.rate:g}" for one in self.trials if one.decision == "met"]
        if lucky:
            return (
                f"{lowest.rate:g} a second do not meet {self.slo}: {lowest.why}; that {', '.join(lucky)} do is luck, "
                "since more is harder."
            )
        return f"No rate that was tried meets {self.slo}; at {lowest.rate:g} a second: {lowest.why}."


async def search(
    run_at: Callable[[float, int], Awaitable[M]],
    slo: Slo,
    *,
    alone: Callable[[int], Awaitable[M]] | None = None,
    start: float | None = None,
    highest: float | None = None,
    tolerance: float = 0.05,
    repeats: int = 3,
    most_repeats: int | None = None,
    most_runs: int = 100,
    first_seed: int = 0,
    on_progress: Callable[[Progress], None] | None = None,
    on_trial: Callable[[Trial[M]], None] | None = None,
) -> Found[M]:
    """Runs until it is found.

    `run_at(rate, seed)` makes one run of an open loop; `alone(seed)` one with a single request at a time. Without
    `start` the search begins at the rate that `alone` had. A trial has `repeats` runs where they are needed, and up to
    `most_repeats` (twice as many) where they leave it open. `tolerance` is the gap between the best rate and the one
    above it, over the best. Raises BenchError for an SLO that is not met even at one request at a time, or not at any
    rate, or only where its least throughput is not reached; InvalidParameter for options that make no sense.
    """
    _check(start, highest, tolerance, repeats, alone is not None)
    most = max(repeats, most_repeats if most_repeats is not None else 2 * repeats)
    seeker = _Seeker(run_at, slo, repeats, most, most_runs, first_seed, on_progress, on_trial)
    if alone is not None:
        await seeker.alone_with(alone)
    first = start if start is not None else seeker.first_rate()
    await seeker.bracket(rounded(first if highest is None else min(first, highest)), highest)
    await seeker.narrow(tolerance)
    found = conclude(slo, list(seeker.trials.values()), alone=seeker.alone, tolerance=tolerance)
    if found.best is None:
        beside = " although one request at a time does" if seeker.alone is not None else ""
        lowest = found.lowest
        if (
            lowest is None
            or lowest.decision == "invalid"
            or any(one.decision == "met" for one in found.trials)
        ):
            raise BenchError(str(found))
        raise BenchError(f"No rate meets {slo}{beside}; at {lowest.rate:g} a second: {lowest.why}.")
    if found.best.missed:
        raise BenchError(str(found))
    return found


def conclude(
    slo: Slo, trials: list[Trial[M]], *, alone: Trial[M] | None = None, tolerance: float = 0.05
) -> Found[M]:
    """What trials say, in whatever order they were made.

    The best rate is the highest that is met with none below it that surely is not: a rate above one that fails was
    luck. One below it that noise left open counts for less than a rate that is surely met, and one below it that could
    not be measured says nothing.
    """
    ordered, best, above = _edges(trials)
    interval = None
    if best is not None and above is not None and above.decision == "not met":
        interval = crossing(ordered, best, above)
    ended: Literal["narrow", "highest", "client", "runs", "none"]
    if best is None:
        ended = "none"
    elif above is None:
        ended = "highest"
    elif above.decision == "invalid":
        ended = "client"
    else:
        ended = "narrow" if _close(best, above, tolerance) else "runs"
    return Found(slo, alone, tuple(ordered), best, above, interval, ended)


def rounded(rate: float) -> float:
    """To three digits: what is run is what is shown."""
    return float(f"{rate:.3g}")


@dataclass
class _Seeker(Generic[M]):
    run_at: Callable[[float, int], Awaitable[M]]
    slo: Slo
    repeats: int
    most_repeats: int
    most_runs: int
    first_seed: int
    on_progress: Callable[[Progress], None] | None
    on_trial: Callable[[Trial[M]], None] | None
    alone: Trial[M] | None = None
    runs: int = 0
    made: dict[float | None, list[M]] = field(default_factory=dict)
    trials: dict[float, Trial[M]] = field(default_factory=dict)

    @property
    def spent(self) -> bool:
        return self.runs >= self.most_runs

    async def alone_with(self, alone: Callable[[int], Awaitable[M]]) -> None:
        """Raises BenchError where not even this meets the SLO."""
        self.alone = await self._trial(None, alone, "one at a time")
        if self.alone.decision == "invalid":
            raise BenchError(f"One request at a time could not be measured: {self.alone.why}.")
        if self.alone.decision == "not met":
            raise BenchError(f"{self.slo} is not met even at one request at a time: {self.alone.why}.")

    def first_rate(self) -> float:
        """What one request at a time had. A session of several requests makes it too high; then it halves."""
        rate = self.alone.interval("request_rate") if self.alone is not None else None
        if rate is None or rate.estimate <= 0.0:
            raise BenchError(
                "One request at a time ended no request, so there is no rate to begin with; give a start."
            )
        return rate.estimate

    async def bracket(self, first: float, highest: float | None) -> None:
        """Doubles until a rate is surely not met, and halves until one surely is, or there is no more to try.

        A trial that noise left open ends neither: the bound may lie beyond it.
        """
        trial = await self._try(first, "growing")
        while not (
            trial.decision == "invalid" or (trial.decision == "not met" and trial.settled) or self.spent
        ):
            rate = rounded((trial.rate or 0.0) * 2.0)
            rate = rate if highest is None else min(rate, highest)
            if rate in self.trials:
                break
            trial = await self._try(rate, "growing")
        while not (any(one.decision == "met" and one.settled for one in self.trials.values()) or self.spent):
            rate = rounded(min(self.trials) / 2.0)
            if rate < first * _LEAST_SHARE or rate in self.trials:
                break
            await self._try(rate, "growing")

    async def narrow(self, tolerance: float) -> None:
        """Halves the gap between the best rate and the next, then confirms the best; again, should it fail."""
        while not self.spent:
            _, best, above = _edges(self.trials.values())
            if best is None or best.rate is None:
                if above is None or above.rate is None or not await self._lower(above.rate):
                    return
                continue
            if above is not None and above.rate is not None and not _close(best, above, tolerance):
                middle = rounded(math.sqrt(best.rate * above.rate))
                if middle not in self.trials:
                    await self._try(middle, "narrowing")
                    continue
            if len(best.outcomes) >= self.repeats:
                return
            await self._try(best.rate, "confirming", at_least=self.repeats)

    async def _lower(self, rate: float) -> bool:
        """A confirmation has undone the lowest rate that was met: one below it is tried, if there may be."""
        lower = rounded(rate / 2.0)
        if lower < max(self.trials) * _LEAST_SHARE or lower in self.trials:
            return False
        await self._try(lower, "growing")
        return True

    async def _try(self, rate: float, phase: Phase, at_least: int = 1) -> Trial[M]:
        trial = await self._trial(rate, lambda seed: self.run_at(rate, seed), phase, at_least)
        self.trials[rate] = trial
        return trial

    async def _trial(
        self, rate: float | None, run: Callable[[int], Awaitable[M]], phase: Phase, at_least: int = 1
    ) -> Trial[M]:
        made = self.made.setdefault(rate, [])
        trial = Trial.of(self.slo, rate, made)
        while not self.spent or not made:
            enough = len(trial.outcomes) >= at_least and trial.settled
            failed = len(trial.invalid) >= 2 and len(trial.invalid) > len(trial.outcomes)
            if enough or failed or len(trial.outcomes) >= self.most_repeats:
                break
            if self.on_progress is not None:
                self.on_progress(self._progress(phase, rate, len(made) + 1))
            made.append(await run(self.first_seed + self.runs))
            self.runs += 1
            trial = Trial.of(self.slo, rate, made)
            if self.on_trial is not None:
                self.on_trial(trial)
        return trial

    def _progress(self, phase: Phase, rate: float | None, run: int) -> Progress:
        _, best, above = _edges(self.trials.values())
        low = best.rate if best is not None else None
        high = above.rate if above is not None and above.decision == "not met" else None
        return Progress(phase, rate, run, low, high, self.runs)


def _edges(trials: Iterable[Trial[M]]) -> tuple[list[Trial[M]], Trial[M] | None, Trial[M] | None]:
    """The trials by rate, the best and the one above it."""
    ordered = sorted((one for one in trials if one.rate is not None), key=lambda one: one.rate or 0.0)
    best: Trial[M] | None = None
    above: Trial[M] | None = None
    doubt = False  # noise left a rate below open
    for one in ordered:
        if one.decision == "met":
            if one.settled or not doubt:
                best, above, doubt = one, None, False
            continue
        above = above or one
        if one.decision == "not met":
            doubt = True
            if one.settled:
                break
    return ordered, best, above


def _close(best: Trial[M], above: Trial[M], tolerance: float) -> bool:
    """A rounded rate may be a little off."""
    return (above.rate or 0.0) <= (best.rate or 0.0) * (1.0 + tolerance) * 1.0005


def _check(start: float | None, highest: float | None, tolerance: float, repeats: int, alone: bool) -> None:
    for name, rate in (("start", start), ("highest", highest)):
        if rate is not None and not (math.isfinite(rate) and rate > 0.0):
            raise InvalidParameter(f"{name} is {rate:g}; a rate is above 0.", name)
    if not 0.001 <= tolerance <= 1.0:
        raise InvalidParameter(f"tolerance is {tolerance:g}; it is from 0.1 % to 100 %.", "tolerance")
    if repeats < 1:
        raise InvalidParameter(f"repeats is {repeats}; it is 1 or more.", "repeats")
    if start is None and not alone:
        raise InvalidParameter(
            "start is missing; without a run of one request at a time it is needed.", "start"
        )
