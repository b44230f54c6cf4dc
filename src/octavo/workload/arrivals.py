"""When sessions begin: open loop by rates, closed loop by clients, or as a trace has it. Knows no lengths.

A rate that changes is a change of clock: gaps of mean 1 are drawn, and the time is where the rate's integral
reaches their sum. So Poisson, gamma and constant gaps work with every shape of rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Annotated

import msgspec

from octavo.workload.draws import Draws
from octavo.workload.lengths import Delay, FixedDelay, Kind

__all__ = [
    "Arrivals",
    "Closed",
    "Constant",
    "Gamma",
    "Level",
    "Poisson",
    "Ramp",
    "Step",
    "TraceTimes",
    "times_s",
]

_Rate = Annotated[float, msgspec.Meta(gt=0, le=1e6)]
_Cv = Annotated[float, msgspec.Meta(ge=0, le=50)]
_Span = Annotated[float, msgspec.Meta(gt=0, le=1e9)]


class Poisson(Kind, frozen=True, kw_only=True, tag="poisson"):
    """Independent of each other, `rate` a second."""

    rate: _Rate


class Gamma(Kind, frozen=True, kw_only=True, tag="gamma"):
    """Gaps of a gamma distribution: `cv` is their deviation over their mean; 1 is Poisson, more comes in bursts."""

    rate: _Rate
    cv: Annotated[float, msgspec.Meta(gt=0, le=50)]


class Constant(Kind, frozen=True, kw_only=True, tag="constant"):
    """One each 1 / `rate` seconds."""

    rate: _Rate


class Ramp(Kind, frozen=True, kw_only=True, tag="ramp"):
    """From one rate to another over `ramp_s`, and then at that; `cv` as for gamma, 0 for even gaps."""

    from_rate: Annotated[float, msgspec.Meta(ge=0, le=1e6)]
    to_rate: _Rate
    ramp_s: _Span
    cv: _Cv = 1.0


class Level(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rate for a time; a rate of 0 is a pause."""

    rate: Annotated[float, msgspec.Meta(ge=0, le=1e6)]
    for_s: _Span


class Step(Kind, frozen=True, kw_only=True, tag="step"):
    """Levels one after another, and again from the first; `cv` as for gamma, 0 for even gaps."""

    levels: Annotated[tuple[Level, ...], msgspec.Meta(min_length=1)]
    cv: _Cv = 1.0

    def __post_init__(self) -> None:
        if not any(level.rate for level in self.levels):
            raise ValueError("levels have only the rate 0; one must be above")


class Closed(Kind, frozen=True, kw_only=True, tag="closed"):
    """`clients` that each wait for an answer, think, and ask again. They begin spread over `start_over_s`."""

    clients: Annotated[int, msgspec.Meta(ge=1, le=100_000)]
    think: Delay = FixedDelay(seconds=0.0)
    start_over_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0


class TraceTimes(Kind, frozen=True, kw_only=True, tag="trace"):
    """The trace's own times, `speed` times as fast."""

    speed: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 1.0


Arrivals = Poisson | Gamma | Constant | Ramp | Step | Closed | TraceTimes


def times_s(arrivals: Arrivals, draws: Draws) -> Iterator[float]:
    """The times at which sessions of an open loop begin, in order, without end."""
    match arrivals:
        case Poisson(rate=rate):
            yield from _at(lambda work: work / rate, 1.0, draws)
        case Gamma(rate=rate, cv=cv):
            yield from _at(lambda work: work / rate, cv, draws)
        case Constant(rate=rate):
            yield from _at(lambda work: work / rate, 0.0, draws)
        case Ramp():
            yield from _at(lambda work: _ramp_time(arrivals, work), arrivals.cv, draws)
        case Step():
            yield from _at(lambda work: _step_time(arrivals.levels, work), arrivals.cv, draws)
        case _:
            raise ValueError(f"{type(arrivals).__name__} has no times of its own.")


def _at(time_of: Callable[[float], float], cv: float, draws: Draws) -> Iterator[float]:
    work = 0.0
    while True:
        yield time_of(work)
        if cv == 0.0:
            work += 1.0
        elif cv == 1.0:
            work += draws.exponential()
        else:
            shape = 1.0 / (cv * cv)
            work += draws.gamma(shape) / shape


def _ramp_time(ramp: Ramp, work: float) -> float:
    """Where from·t + (to - from)·t²/(2·ramp) is `work`; after the ramp the rate stays."""
    during = (ramp.from_rate + ramp.to_rate) / 2.0 * ramp.ramp_s
    if work >= during:
        return ramp.ramp_s + (work - during) / ramp.to_rate
    slope = (ramp.to_rate - ramp.from_rate) / ramp.ramp_s
    root = math.sqrt(max(0.0, ramp.from_rate * ramp.from_rate + 2.0 * slope * work))
    return 2.0 * work / (ramp.from_rate + root) if work else 0.0


def _step_time(levels: tuple[Level, ...], work: float) -> float:
    cycle = sum(level.rate * level.for_s for level in levels)
    rounds = math.floor(work / cycle)
    at, left = rounds * sum(level.for_s for level in levels), work - rounds * cycle
    for level in levels:
        if left < level.rate * level.for_s:
            return at + left / level.rate
        at, left = at + level.for_s, left - level.rate * level.for_s
    return at
