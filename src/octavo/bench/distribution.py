"""Many values and their percentiles, also where a value stands for millions of equal ones. Knows no metric.

One definition of a percentile everywhere: of N values in order, numbered from 0, the p-th is at the place
(N - 1) * p / 100, and between two places it is on the straight line between their values (definition 7 of Hyndman
and Fan, "Sample quantiles in statistical packages", 1996; numpy's default).
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

__all__ = ["Distribution", "Floats", "Ints", "Summary"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Summary(msgspec.Struct, frozen=True):
    """What is kept of a distribution."""

    count: int
    mean: float
    std: float
    """Over all values there are (divided by their number, not by one less)."""
    min: float
    max: float
    p50: float
    p75: float
    p90: float
    p95: float
    p99: float
    p99_9: float


class Distribution:
    """Values, each with how often it is there (once, without `weights`).

    Equal to the distribution of the list in which each value is written as often as its weight says, bit for bit in
    every percentile. NaN values stand for "none" and are left out, and so are values with the weight 0.
    """

    def __init__(
        self, values: NDArray[Any], weights: NDArray[Any] | None = None, *, scale: float = 1.0
    ) -> None:
        """Of `values` [n] and `weights` [n] (whole numbers, 0 or more).

        Every value is divided by `scale`, but later: whole microseconds are sorted and added up without rounding,
        and only what is asked for becomes seconds.
        """
        values = np.asarray(values)
        if weights is not None:
            weights = np.asarray(weights, dtype=np.int64)
            if weights.shape != values.shape or (weights < 0).any():
                raise ValueError("Each value has one weight, 0 or more.")
        if values.dtype.kind == "f" or weights is not None:
            keep = ~np.isnan(values) if weights is None else ~np.isnan(values) & (weights > 0)
            values, weights = values[keep], None if weights is None else weights[keep]
        if weights is None:
            values = np.sort(values)
        else:
            order = np.argsort(values)
            values, weights = values[order], weights[order]
        # Equal values become one: millions of gaps in whole microseconds have some thousand different lengths.
        lasts = (
            np.append(np.flatnonzero(values[1:] != values[:-1]), len(values) - 1)
            if len(values)
            else _NO_PLACES
        )
        self._values = values[lasts]
        self._ends: Ints = lasts + 1 if weights is None else np.cumsum(weights)[lasts]
        self._scale = scale
        self.count = int(self._ends[-1]) if len(self._ends) else 0

    @classmethod
    def of_gaps(cls, gaps_us: Ints, zeros: int) -> Distribution:
        """Of gaps in whole microseconds, in seconds, and `zeros` more that are 0."""
        found = cls(gaps_us, scale=1e6)
        if zeros:
            if not len(found._values) or found._values[0] != 0:
                found._values = np.insert(found._values, 0, 0)
                found._ends = np.insert(found._ends, 0, 0)
            found._ends += zeros
            found.count += zeros
        return found

    def percentile(self, p: float) -> float | None:
        """The p-th, 0 to 100; None of nothing."""
        if not 0 <= p <= 100:
            raise ValueError(f"The percentile is {p}; it must be from 0 to 100.")
        if self.count == 0:
            return None
        place = (self.count - 1) * (p / 100)
        low = int(place)
        below, above = self._at(low), self._at(min(low + 1, self.count - 1))
        part = place - low
        # The nearer end is the one to start from, as numpy does it, so that both give the same last bit.
        return above - (above - below) * (1 - part) if part >= 0.5 else below + (above - below) * part

    def mean(self) -> float | None:
        """None of nothing."""
        return self._mean() / self._scale if self.count else None

    def summary(self) -> Summary | None:
        """None of nothing."""
        if self.count == 0:
            return None
        mean = self._mean()
        deviations = self._values - mean
        variance = float(deviations * deviations @ self._counts()) / self.count
        ranks = (50, 75, 90, 95, 99, 99.9)
        percentiles = [value for p in ranks if (value := self.percentile(p)) is not None]
        ends = self._at(0), self._at(self.count - 1)
        return Summary(self.count, mean / self._scale, variance**0.5 / self._scale, *ends, *percentiles)

    def share_below(self, limit: float) -> float | None:
        """The share of values at or below `limit`, 0 to 1; None of nothing."""
        if self.count == 0:
            return None
        place = int(np.searchsorted(self._values / self._scale, limit, side="right"))
        return int(self._ends[place - 1]) / self.count if place else 0.0

    def curve(self, points: int = 201) -> list[tuple[float, float]]:
        """The cumulative distribution to draw: (value, share of values up to it) at equally spaced shares."""
        shares = [place / (points - 1) for place in range(points)]
        return [(value, share) for share in shares if (value := self.percentile(100 * share)) is not None]

    def _mean(self) -> float:
        return float((self._values * self._counts()).sum()) / self.count

    def _counts(self) -> Ints:
        return np.diff(self._ends, prepend=0)

    def _at(self, place: int) -> float:
        return float(self._values[np.searchsorted(self._ends, place, side="right")] / self._scale)


_NO_PLACES = np.zeros(0, dtype=np.int64)
