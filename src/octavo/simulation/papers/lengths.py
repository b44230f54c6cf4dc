"""Lognormal lengths from what papers say of theirs: a mean, or a median and a percentile. Knows no workload."""

from __future__ import annotations

from statistics import NormalDist

from octavo.workload.draws import exp, log
from octavo.workload.lengths import Lognormal, LognormalPart

__all__ = ["clamped_mean", "with_mean", "with_median"]

_NORMAL = NormalDist()
_P90 = _NORMAL.inv_cdf(0.9)


def with_median(median: float, p90: float, most: int) -> Lognormal:
    """Median and 90th percentile as given: sigma = ln(p90 / median) / 1.2816. None is longer than `most`."""
    return Lognormal(parts=(LognormalPart(median=median, sigma=log(p90 / median) / _P90),), max=most)


def with_mean(mean: float, sigma: float, most: int) -> Lognormal:
    """The mean as given, counting that none is longer than `most`: the median is found by bisection."""
    low, high = mean / 100.0, 100.0 * most
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if clamped_mean(middle, sigma, most) < mean else (low, middle)
    return Lognormal(parts=(LognormalPart(median=round(low, 2), sigma=sigma),), max=most)


def clamped_mean(median: float, sigma: float, most: int) -> float:
    """Of min(X, most) for a lognormal X: median e^(σ²/2) Φ((ln(most/median) − σ²) / σ) + most (1 − Φ(ln(most/median)
    / σ))."""
    reach = log(most / median) / sigma
    inside = median * exp(sigma * sigma / 2.0) * _NORMAL.cdf(reach - sigma)
    return inside + most * (1.0 - _NORMAL.cdf(reach))
