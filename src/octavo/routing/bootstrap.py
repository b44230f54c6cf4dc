"""Draws of rows with replacement, by groups of near duplicates. Knows no statistic.

Rows of one group are drawn together: they are no independent witnesses (Efron 1979; block bootstrap). Two routers that
are compared are given the same draws.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["draws", "interval"]


def draws(groups: NDArray[np.int64], count: int, seed: int) -> NDArray[np.float64]:
    """[rows, count]: how often each row is in each draw."""
    names, inverse = np.unique(groups, return_inverse=True)
    random = np.random.default_rng(seed)
    times = random.multinomial(len(names), np.full(len(names), 1 / len(names)), size=count)
    return times.T[inverse].astype(np.float64)


def interval(values: NDArray[np.float64], level: float = 0.95) -> tuple[float, float]:
    """Between which of the draws' values that share of them lies; (nan, nan) where none has a value."""
    known = values[np.isfinite(values)]
    if not len(known):
        return float("nan"), float("nan")
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
