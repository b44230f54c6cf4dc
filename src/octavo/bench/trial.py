"""One rate that was tried, with several runs at it, and what they say of an SLO. Knows no order of rates.

Each run has, for each part of the SLO, its excess over the bound (`Part.excess`: below 0 is good). Whether the rate
meets a part is asked of the mean over runs, by Student's t at 95 %. A run that is far off alone is enough, since no
spread between runs explains that; near the bound more runs are made, and if they do not settle it their mean decides,
and the trial says that it is not sure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

from octavo.bench.backlog import LIMIT, Backlog
from octavo.bench.definitions import definition
from octavo.bench.intervals import Interval, mean_interval
from octavo.bench.slo import Judged, Part, Slo, show

__all__ = ["CAP", "FAR", "HALF", "Outcome", "PartTrial", "Trial", "needs_load"]

CAP = math.log(10.0)
"""An excess beyond it counts as this: ten times too slow is as bad as never."""
FAR = 1.0
"""An excess beyond it, either way, needs one run: 2.7 times too slow or too fast, or all that a share can give."""
HALF = math.log(2.0)
"""An excess beyond it in two runs of two needs no third."""

_BACKLOG = Part("backlog", "share", "<=", LIMIT, implied=True)


class Outcome(Protocol):
    """What is asked of a run's measures; octavo.bench.measures.Measures has it."""

    @property
    def valid(self) -> bool: ...
    @property
    def problems(self) -> Sequence[str]: ...
    @property
    def backlog(self) -> Backlog | None: ...
    def value(self, name: str) -> float | None: ...
    def late(self, name: str) -> float | None: ...


M = TypeVar("M", bound=Outcome)


@dataclass(frozen=True)
class PartTrial:
    """One part of the SLO, over the runs."""

    part: Part
    values: tuple[float | None, ...]
    """Of each run."""
    excess: Interval
    """Of the mean; each at most `CAP` either way."""
    settled: bool
    """Whether `met` is sure."""
    met: bool

    def __str__(self) -> str:
        known = [value for value in self.values if value is not None]
        if not known:
            return str(Judged(self.part, None, False, "it was not measured, or no request has it"))
        mean = sum(known) / len(known)
        if self.part is _BACKLOG:
            piled = f"{show(mean, 'share')} of the offered requests piled up"
            return piled if self.met else f"the server fell behind: {piled}"
        return str(Judged(self.part, mean, self.met))


@dataclass(frozen=True)
class Trial(Generic[M]):
    """A rate, and the runs at it that are valid."""

    rate: float | None
    """Sessions a second, as the workload's arrivals have it; None: one request at a time."""
    outcomes: tuple[M, ...]
    parts: tuple[PartTrial, ...]
    invalid: tuple[M, ...] = ()
    """Runs that do not count, since the measuring itself failed."""

    @classmethod
    def of(cls, slo: Slo, rate: float | None, outcomes: Sequence[M]) -> Trial[M]:
        """Of all runs at a rate, in order."""
        good = tuple(one for one in outcomes if one.valid)
        parts = []
        if good:
            parts = [_part(part, [one.late(part.name) for one in good]) for part in slo.parts]
            shares = [one.backlog.share if one.backlog is not None else None for one in good]
            if rate is not None and None not in shares:
                parts.append(_part(_BACKLOG, shares))
        return cls(rate, good, tuple(parts), tuple(one for one in outcomes if not one.valid))

    @property
    def decision(self) -> Literal["met", "not met", "invalid"]:
        """As sure as it is. `invalid`: there is no valid run."""
        if not self.outcomes:
            return "invalid"
        return "met" if all(one.met for one in self._bounding) else "not met"

    @property
    def settled(self) -> bool:
        """Whether more runs would not change the decision."""
        return any(one.settled and not one.met for one in self._bounding) or (
            bool(self.outcomes) and all(one.settled for one in self._bounding)
        )

    @property
    def excess(self) -> float:
        """Of the part that is worst, on the mean; infinite where no run is valid."""
        return max((one.excess.estimate for one in self._bounding), default=math.inf)

    @property
    def missed(self) -> tuple[PartTrial, ...]:
        """What is not met, of parts that need load too."""
        return tuple(one for one in self.parts if not one.met)

    @property
    def why(self) -> str:
        """The decision's reason, in words."""
        if not self.outcomes:
            return (
                "; ".join(problem.rstrip(".") for problem in self.invalid[-1].problems) or "no run is valid"
            )
        told = [one for one in self._bounding if not one.met]
        if not told:  # what is nearest to its bound, of those that were asked for if there are any
            asked = [one for one in self._bounding if not one.part.implied] or self._bounding
            told = [max(asked, key=lambda one: one.excess.estimate)]
        return "; ".join(map(str, told))

    def interval(self, name: str, level: float = 0.95) -> Interval | None:
        """Of a metric's mean over the runs; None where no run has it."""
        values = [value for one in self.outcomes if (value := one.value(name)) is not None]
        return mean_interval(values, level) if values else None

    @property
    def _bounding(self) -> tuple[PartTrial, ...]:
        """What gets harder with a higher rate; a rate too low is no fault in a search for the highest."""
        return tuple(one for one in self.parts if not needs_load(one.part))


def needs_load(part: Part) -> bool:
    """Whether a rate that is too low misses the part, as it does a least throughput."""
    if part is _BACKLOG or part.upper:
        return False
    return not (part.kind == "share" and definition(part.name).better == "higher")


def _part(part: Part, values: Sequence[float | None]) -> PartTrial:
    excesses = [_excess(part, value) for value in values]
    excess = mean_interval(excesses)
    met = excess.estimate < 0.0
    nearest = min(abs(one) for one in excesses)
    agreed = all((one < 0.0) == met for one in excesses)
    if part is _BACKLOG:
        # The number in flight wanders, so that one run that piled up is no proof; one that did not is.
        settled = agreed and (met or len(excesses) > 1)
    elif len(excesses) == 1:
        settled = nearest >= FAR
    else:
        settled = 0.0 not in excess or (agreed and nearest >= HALF)
    return PartTrial(part, tuple(values), excess, settled, met)


def _excess(part: Part, value: float | None) -> float:
    excess = max(-CAP, min(CAP, part.excess(value)))
    if excess == 0.0 and value is not None:  # the bound itself: `<=` is met, `<` is not
        return -1e-9 if part.holds(value) else 1e-9
    return excess
