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

__all__ = ["STATS", "Distribution", "Floats", "Ints", "Summary"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

STATS = ("mean", "std", "min", "max", "p50", "p75", "p90", "p95", "p99", "p99_9")
"""What a summary has of a distribution; p99_9 is the percentile 99.9."""


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

        Every value is divided by `scale`, but later: whole microseconds are sorted, and only what is asked for
        becomes seconds.
        """
        values = np.asarray(values)
        keep = ~np.isnan(values) if values.dtype.kind == "f" else None
        if weights is not None:
            weights = np.asarray(weights, dtype=np.int64)
            if weights.shape != values.shape or (weights < 0).any():
                raise ValueError("Each value has one weight, 0 or more.")
            keep = weights > 0 if keep is None else keep & (weights > 0)
        if keep is not None and not keep.all():
            values, weights = values[keep], None if weights is None else weights[keep]
        self._scale = scale
        if weights is None:
            self._sorted = np.sort(values)
            self._ends: Ints | None = None
            self._weights: Ints | None = None
            self.count = len(values)
        else:
            order = np.argsort(values, kind="stable")
            self._sorted, self._weights = values[order], weights[order]
            self._ends = np.cumsum(self._weights)
            self.count = int(self._ends[-1]) if len(values) else 0

    @classmethod
    def of_gaps(cls, gaps_us: Ints, zeros: int) -> Distribution:
        """Of gaps in whole microseconds, in seconds, and `zeros` more that are 0."""
        if not zeros:
            return cls(gaps_us, scale=1e6)
        weights = np.ones(len(gaps_us) + 1, dtype=np.int64)
        weights[0] = zeros
        return cls(np.concatenate((np.zeros(1, dtype=gaps_us.dtype), gaps_us)), weights, scale=1e6)

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
        deviations = self._sorted - mean
        deviations *= deviations
        variance = (
            float(deviations.sum() if self._weights is None else deviations @ self._weights) / self.count
        )
        ranks = (50, 75, 90, 95, 99, 99.9)
        percentiles = [value for p in ranks if (value := self.percentile(p)) is not None]
        ends = self._at(0), self._at(self.count - 1)
        return Summary(self.count, mean / self._scale, variance**0.5 / self._scale, *ends, *percentiles)

    def _mean(self) -> float:
        # Whole microseconds add up without any rounding.
        total = self._sorted.sum() if self._weights is None else (self._sorted * self._weights).sum()
        return float(total) / self.count

    def share_below(self, limit: float) -> float | None:
        """The share of values at or below `limit`, 0 to 1; None of nothing."""
        if self.count == 0:
            return None
        place = int(np.searchsorted(self._sorted / self._scale, limit, side="right"))
        return (place if self._ends is None else int(self._ends[place - 1]) if place else 0) / self.count

    def curve(self, points: int = 201) -> list[tuple[float, float]]:
        """The cumulative distribution to draw: (value, share of values up to it) at equally spaced shares."""
        shares = [place / (points - 1) for place in range(points)]
        return [(value, share) for share in shares if (value := self.percentile(100 * share)) is not None]

    def _at(self, place: int) -> float:
        if self._ends is not None:
            place = int(np.searchsorted(self._ends, place, side="right"))
        return float(self._sorted[place] / self._scale)
