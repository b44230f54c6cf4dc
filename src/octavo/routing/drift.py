"""Whether what is measured now still comes from where the reference came from. Knows numbers, and not what they are.

Kolmogorov's distance between two samples, with a bound that holds for every distribution and every size: each sample
is further than e from where it comes from with a probability of at most 2·exp(−2·n·e²) (Dvoretzky, Kiefer and
Wolfowitz 1956, with Massart's constant, 1990). So a distance above e(reference) + e(window), each at half the level, is
a false alarm with a probability below the level. Windows follow one another and share no value; at a level of 0.001,
a thousand windows without drift bring one false alarm at most, on average.

Beside it stands the population stability index (PSI) over the reference's tenths: how much, where the alarm says
whether.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["LEAST", "LEVEL", "Drift", "Reading", "bound", "distance", "psi"]

LEVEL = 0.001
LEAST = 100
"""Values of a window or a reference: fewer bring a bound that nothing reaches."""
_FLOOR = 1e-4
"""Of a tenth's share, so that an empty one has a logarithm."""


@dataclass(frozen=True)
class Reading:
    """What one window says."""

    distance: float
    bound: float
    psi: float
    values: int

    @property
    def alarm(self) -> bool:
        """It has moved."""
        return self.distance > self.bound


def bound(reference: int, window: int, level: float = LEVEL) -> float:
    """The distance that two samples of these sizes from one source exceed with a probability of at most `level`."""
    return sum(math.sqrt(math.log(4 / level) / (2 * count)) for count in (reference, window))


def distance(first: Sequence[float], second: Sequence[float]) -> float:
    """The largest difference between the two distribution functions; both ascending."""
    return max(
        abs(bisect_right(first, at) / len(first) - bisect_right(second, at) / len(second))
        for at in {*first, *second}
    )


def psi(reference: Sequence[float], window: Sequence[float]) -> float:
    """The population stability index over the reference's tenths; both ascending. 0.1 is little, 0.25 much."""
    edges = sorted({reference[len(reference) * tenth // 10] for tenth in range(1, 10)})
    total = 0.0
    before = (0, 0)
    for edge in [*edges, math.inf]:
        after = bisect_right(reference, edge), bisect_right(window, edge)
        share = max((after[0] - before[0]) / len(reference), _FLOOR)
        now = max((after[1] - before[1]) / len(window), _FLOOR)
        total += (now - share) * math.log(now / share)
        before = after
    return total


class Drift:
    """One stream of values beside its reference."""

    def __init__(self, reference: Iterable[float] = (), *, window: int = 500, level: float = LEVEL) -> None:
        """`reference`: where it is empty, the first `window` values are it. `window`: values that are compared at once.
        Raises ValueError for fewer than 100."""
        self.reference = sorted(reference)
        if window < LEAST or 0 < len(self.reference) < LEAST:
            raise ValueError(f"a window and a reference have at least {LEAST} values")
        self._window, self._level = window, level
        self._values: list[float] = []

    def add(self, value: float) -> Reading | None:
        """The reading where this value fills a window."""
        self._values.append(value)
        if len(self._values) < self._window:
            return None
        values, self._values = sorted(self._values), []
        if not self.reference:
            self.reference = values
            return None
        return Reading(
            distance(self.reference, values),
            bound(len(self.reference), len(values), self._level),
            psi(self.reference, values),
            len(values),
        )
