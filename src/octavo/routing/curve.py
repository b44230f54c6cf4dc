"""What a router's quality costs: the curve, and the few numbers that stand for it. Knows labels and probabilities.

One threshold decides. A tier's price is brought to 0 … 1 (the cheapest tier's and the dearest's mean), and the tier
with the largest p − threshold · price is taken. With two tiers that is: the strong one where it is likelier to be right
by more than the threshold. A large threshold takes the cheapest tier always, a very negative one the dearest.

PGR is how much of the quality between the two is reached, APGR its mean over all shares of the cost, CPT(x) the share
of the cost at which PGR first is x (Ong et al. 2024, arXiv:2406.18665). A random mix has APGR 0.5 and CPT(x) = x.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "Curve",
    "Point",
    "Summary",
    "choose",
    "curves",
    "points_of",
    "prices_of",
    "summaries",
    "thresholds_of",
]

POINTS = 1001
DRAWS = 1000


def prices_of(costs: NDArray[np.float64] | None, tiers: int) -> NDArray[np.float64]:
    """[tiers], 0 … 1, from the mean cost of each; without costs the tiers are evenly spaced in their order."""
    if costs is None:
        return np.linspace(0.0, 1.0, tiers)
    width = float(costs.max() - costs.min())
    return (costs - costs.min()) / width if width > 0 else np.linspace(0.0, 1.0, tiers)


def choose(
    probabilities: NDArray[np.float64], prices: NDArray[np.float64], threshold: float
) -> NDArray[np.int64]:
    """[rows]: the tier of each row; of equals, the first."""
    found: NDArray[np.int64] = np.argmax(probabilities - threshold * prices, axis=1)
    return found


def thresholds_of(probabilities: NDArray[np.float64], prices: NDArray[np.float64]) -> NDArray[np.float64]:
    """Descending [points]: between those at which a row changes its tier, thinned out, and one
    beyond each end."""
    slopes = []
    for first in range(len(prices)):
        for second in range(first + 1, len(prices)):
            width = prices[second] - prices[first]
            if abs(width) > 1e-12:
                slopes.append((probabilities[:, second] - probabilities[:, first]) / width)
    every = np.unique(np.concatenate(slopes))[::-1]
    if len(every) > POINTS:
        every = every[np.linspace(0, len(every) - 1, POINTS).astype(np.int64)]
    return np.concatenate([[every[0] + 1.0], (every[1:] + every[:-1]) / 2, [every[-1] - 1.0]])


@dataclass(frozen=True)
class Curve:
    """By threshold, descending: from the cheapest tier alone to the dearest alone."""

    thresholds: NDArray[np.float64]
    costs: NDArray[np.float64]
    """Of a row, on average; [points], or [points, draws]."""
    qualities: NDArray[np.float64]
    """The share of rows that are right; the same shape."""


@dataclass(frozen=True)
class Summary:
    """Of one curve: numbers, or arrays with one for each draw."""

    apgr: NDArray[np.float64]
    cpt50: NDArray[np.float64]
    cpt80: NDArray[np.float64]
    at_quality: NDArray[np.float64]
    """The share of the cost (with two tiers: of calls to the strong one) at the wanted share of its quality."""


def curves(
    probabilities: NDArray[np.float64],
    correct: NDArray[np.bool_],
    prices: NDArray[np.float64],
    costs: NDArray[np.float64] | None = None,
    weights: NDArray[np.float64] | None = None,
    thresholds: NDArray[np.float64] | None = None,
) -> Curve:
    """`costs`: [rows, tiers] in money; None takes `prices`. `weights`: [rows, draws], how often a row is in a draw."""
    if thresholds is None:
        thresholds = thresholds_of(probabilities, prices)
    spent = np.broadcast_to(prices, correct.shape) if costs is None else costs
    weights = np.ones((len(correct), 1)) if weights is None else weights
    total = weights.sum(axis=0)
    each = np.arange(len(correct))
    quality, cost = (
        np.empty((len(thresholds), weights.shape[1])),
        np.empty((len(thresholds), weights.shape[1])),
    )
    for at in range(0, len(thresholds), 128):
        chosen = np.stack([choose(probabilities, prices, one) for one in thresholds[at : at + 128]])
        quality[at : at + 128] = correct[each, chosen].astype(np.float64) @ weights / total
        cost[at : at + 128] = spent[each, chosen] @ weights / total
    return Curve(thresholds, cost, quality)


@dataclass(frozen=True)
class Point:
    """Of a curve, to be shown."""

    threshold: float
    share: float
    """Of the way from the cheapest tier's cost to the dearest's."""
    cost: float
    quality: float
    reached: float
    """PGR: of the way from the cheapest tier's quality to the dearest's; NaN where that is no way up."""
    random: float
    """The quality of a random mix for the same cost."""


def points_of(curve: Curve, count: int = 11) -> list[Point]:
    """As many points, at even distances in the cost, of the first draw."""
    costs, qualities = curve.costs[:, 0], curve.qualities[:, 0]
    spread, gain = costs[-1] - costs[0], qualities[-1] - qualities[0]
    found = []
    for share in np.linspace(0, 1, count):
        place = int(np.argmin(np.abs(costs - (costs[0] + share * spread)))) if share < 1 else len(costs) - 1
        at = float((costs[place] - costs[0]) / spread) if spread > 0 else 0.0
        found.append(
            Point(
                float(curve.thresholds[place]),
                at,
                float(costs[place]),
                float(qualities[place]),
                float((qualities[place] - qualities[0]) / gain) if gain > 0 else float("nan"),
                float(qualities[0] + at * gain),
            )
        )
    return found


def summaries(curve: Curve, quality: float = 0.95) -> Summary:
    """One number for each draw. Where the dearest tier is no better than the cheapest, they are not defined: NaN."""
    spread = curve.costs[-1] - curve.costs[0]
    gain = curve.qualities[-1] - curve.qualities[0]
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = (curve.costs - curve.costs[0]) / np.where(spread > 0, spread, np.nan)
        reached = (curve.qualities - curve.qualities[0]) / np.where(gain > 0, gain, np.nan)
        wanted = (quality * curve.qualities[-1] - curve.qualities[0]) / np.where(gain > 0, gain, np.nan)
    area = (np.diff(shares, axis=0) * (reached[1:] + reached[:-1]) / 2).sum(axis=0)
    return Summary(
        area,
        _first(shares, reached, np.full(len(area), 0.5)),
        _first(shares, reached, np.full(len(area), 0.8)),
        _first(shares, reached, wanted),
    )


def _first(
    shares: NDArray[np.float64], reached: NDArray[np.float64], wanted: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The share at which each draw's curve first reaches what is wanted, between two points on a line."""
    above = reached >= wanted
    place = np.argmax(above, axis=0)
    draws = np.arange(len(wanted))
    before = np.maximum(place - 1, 0)
    low, high = reached[before, draws], reached[place, draws]
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.where(high > low, (wanted - low) / (high - low), 1.0)
    found = shares[before, draws] + np.clip(part, 0, 1) * (shares[place, draws] - shares[before, draws])
    return np.where(above.any(axis=0) & np.isfinite(wanted), np.where(place == 0, 0.0, found), np.nan)
