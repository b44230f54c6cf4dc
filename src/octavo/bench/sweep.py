"""A curve over rates: which to run, and the runs. Knows no SLO; a run is made by a function that it is given.

`1,2,4` are these rates, `0.5:8:6` six from 0.5 to 8 with equal ratios, and `auto` goes from what one request at a time
had to where the server no longer keeps up, with more rates near there, since the curve bends there.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic

from octavo.bench.search import Progress, rounded
from octavo.bench.trial import M
from octavo.errors import BenchError, InvalidParameter

__all__ = ["AUTO_POINTS", "Sweep", "SweepPoint", "saturated", "sweep", "sweep_auto"]

AUTO_POINTS = 8
_MOST = 100
_MOST_DOUBLINGS = 20
_KEPT_UP = 0.9


@dataclass(frozen=True)
class Sweep:
    """What `--sweep` asks for."""

    rates: tuple[float, ...]
    """Rising; nothing: `auto`."""

    @classmethod
    def parse(cls, text: str) -> Sweep:
        """Raises InvalidParameter."""
        if text.strip().lower() == "auto":
            return cls(())
        if ":" in text:
            return cls(_between(text))
        rates = [_rate(text, piece) for piece in text.split(",")]
        if len(set(rates)) < len(rates):
            raise _wrong(text, "has a rate twice; leave one out, or give repeats")
        return cls(tuple(sorted(rates)))


@dataclass(frozen=True)
class SweepPoint(Generic[M]):
    """All runs at one rate."""

    rate: float | None
    """Sessions a second; None: one request at a time."""
    outcomes: tuple[M, ...]


async def sweep(
    run_at: Callable[[float, int], Awaitable[M]],
    rates: Sequence[float],
    *,
    repeats: int = 1,
    first_seed: int = 0,
    on_progress: Callable[[Progress], None] | None = None,
) -> list[SweepPoint[M]]:
    """Every rate `repeats` times, in rounds, so that a machine that warms up does not favour some of them.

    Each run has a seed of its own. Returns the points in the order of `rates`.
    """
    if repeats < 1:
        raise InvalidParameter(f"repeats is {repeats}; it is 1 or more.", "repeats")
    made: dict[float, list[M]] = {rate: [] for rate in rates}
    for place in range(repeats * len(made)):
        rate = list(made)[place % len(made)]
        if on_progress is not None:
            on_progress(Progress("sweeping", rate, len(made[rate]) + 1, None, None, place))
        made[rate].append(await run_at(rate, first_seed + place))
    return [SweepPoint(rate, tuple(outcomes)) for rate, outcomes in made.items()]


async def sweep_auto(
    run_at: Callable[[float, int], Awaitable[M]],
    alone: Callable[[int], Awaitable[M]],
    *,
    points: int = AUTO_POINTS,
    repeats: int = 1,
    first_seed: int = 0,
    on_progress: Callable[[Progress], None] | None = None,
) -> list[SweepPoint[M]]:
    """One request at a time, then about `points` rates up to the first that the server does not keep up with.

    Rates double until then; what is left of `points` halves the widest gaps, that where the server stops keeping up
    before all others. With `repeats` all is run again in rounds. Raises BenchError where one at a time ends nothing.
    """
    runs = 0

    async def make(rate: float | None) -> M:
        nonlocal runs
        if on_progress is not None:
            on_progress(
                Progress("sweeping" if rate is not None else "one at a time", rate, 1, None, None, runs)
            )
        seed = first_seed + runs
        runs += 1
        return await (alone(seed) if rate is None else run_at(rate, seed))

    first = await make(None)
    begun = first.value("request_rate")
    if not begun:
        raise BenchError(
            "One request at a time ended no request, so there is no rate to begin with; give the rates."
        )
    rate = rounded(begun)
    made: dict[float, M] = {rate: await make(rate)}
    down = saturated(made[rate])  # a session of several requests has fewer sessions a second
    for _ in range(_MOST_DOUBLINGS):
        if saturated(made[rate]) is not down:
            break
        rate = rounded(rate / 2.0 if down else rate * 2.0)
        made[rate] = await make(rate)
    while len(made) < points:
        middle = _widest(made)
        if middle in made:
            break
        made[middle] = await make(middle)
    rates = sorted(made)
    more = await sweep(
        run_at,
        rates if repeats > 1 else [],
        repeats=max(1, repeats - 1),
        first_seed=first_seed + runs,
        on_progress=on_progress,
    )
    later = {point.rate: point.outcomes for point in more}
    curve = [SweepPoint(rate, (made[rate], *later.get(rate, ()))) for rate in rates]
    return [SweepPoint(None, (first,)), *curve]


def saturated(outcome: M) -> bool:
    """Whether the server did not keep up: requests piled up, or fewer were answered than were offered."""
    if outcome.backlog is not None and outcome.backlog.grows:
        return True
    offered, answered = outcome.value("offered_rate"), outcome.value("request_rate")
    return offered is not None and answered is not None and answered < _KEPT_UP * offered


def _widest(made: dict[float, M]) -> float:
    """The middle of the widest gap, by ratio; the gap in which the server stops keeping up counts four times."""
    rates = sorted(made)
    widest, at = 0.0, rates[0]
    for low, high in itertools.pairwise(rates):
        bend = saturated(made[high]) and not saturated(made[low])
        width = math.log(high / low) * (4.0 if bend else 1.0)
        if width > widest:
            widest, at = width, rounded(math.sqrt(low * high))
    return at


def _between(text: str) -> tuple[float, ...]:
    parts = text.split(":")
    if len(parts) != 3:
        raise _wrong(text, "is no range")
    low, high = _rate(text, parts[0]), _rate(text, parts[1])
    count = int(parts[2]) if re.fullmatch(r"\s*\d{1,6}\s*", parts[2]) else 0
    if not 2 <= count <= _MOST:
        raise _wrong(text, f"has {parts[2].strip()!r} rates; from 2 to {_MOST} are possible")
    if not low < high:
        raise _wrong(text, f"goes from {low:g} to {high:g}; the first rate must be below the last")
    ratio = (high / low) ** (1.0 / (count - 1))
    rates = [low, *(rounded(low * ratio**place) for place in range(1, count - 1)), high]
    if len(set(rates)) < count:
        raise _wrong(text, f"has {count} rates that are equal in three digits; ask for fewer")
    return tuple(rates)


def _rate(text: str, piece: str) -> float:
    try:
        rate = float(piece)
    except ValueError:
        rate = math.nan
    if not (math.isfinite(rate) and rate > 0.0):
        raise _wrong(text, f"has {piece.strip()!r}, no rate above 0")
    return rate


def _wrong(text: str, reason: str) -> InvalidParameter:
    hint = "write 1,2,4 or 0.5:8:6 (first, last, count) or auto"
    return InvalidParameter(f"--sweep is {text!r}, which {reason}; {hint}.", "sweep")
