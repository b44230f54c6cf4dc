"""The threshold for a target, on labelled logs: a share of the best tier's quality, or a budget. Knows no file.

The threshold is the largest (the cheapest way) at which the target is met on the logs; how sure that is comes from
the same search on a thousand draws of them. Where the draws disagree about whether it can be met at all, there is no
answer: better none than one that is made up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from octavo.errors import RoutingError
from octavo.routing.bootstrap import draws, interval
from octavo.routing.curve import DRAWS, Curve, curves

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["LEAST_DIFFERENT", "LEAST_ROWS", "Budget", "Calibrated", "Estimate", "for_budget", "for_quality"]

LEAST_ROWS = 100
LEAST_DIFFERENT = 20
"""Rows in which not all tiers are alike: the others say nothing about who should answer."""
SUPPORTED = 0.95
"""Of the draws must be able to meet the target."""

_BUDGET = re.compile(r"\s*[$€£]?\s*(\d+(?:\.\d+)?)\s*/\s*(request|hour|day|week|month)\s*")
_DAYS = {"hour": 1 / 24, "day": 1.0, "week": 7.0, "month": 30.0}


@dataclass(frozen=True)
class Budget:
    """Money for each request."""

    text: str
    per_request: float

    @classmethod
    def parse(cls, text: str, requests_per_day: float | None) -> Budget:
        """`$20/day`, `0.002/request`; hour, week and month (30 days) too. Raises RoutingError."""
        match = _BUDGET.fullmatch(text)
        if match is None or float(match[1]) <= 0:
            raise RoutingError(
                f"--budget is '{text}'; write money above 0 and a time, such as $20/day or $0.002/request."
            )
        if match[2] == "request":
            return cls(text, float(match[1]))
        if requests_per_day is None:
            raise RoutingError(
                f"--budget is '{text}', and how many requests come in a day is not known; give --requests-per-day, or "
                "logs with a column 'time'."
            )
        return cls(text, float(match[1]) / _DAYS[match[2]] / requests_per_day)


@dataclass(frozen=True)
class Estimate:
    """A number, and between what 95 % of the draws have it."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, drawn: NDArray[np.float64]) -> Estimate:
        return cls(float(value), *interval(drawn))


@dataclass(frozen=True)
class Calibrated:
    """A threshold and what it brings, each with its interval."""

    threshold: Estimate
    quality: Estimate
    """The share of requests that are answered right."""
    cost: Estimate
    """Of a request."""
    dearest_share: Estimate
    """Of the requests go to the dearest tier."""
    rows: int


@dataclass(frozen=True)
class _Drawn:
    whole: Curve
    each: Curve
    dearest: NDArray[np.float64]
    """[points, draws]: the share that goes there."""
    whole_dearest: NDArray[np.float64]
    best: NDArray[np.float64]
    """[draws]: the quality of the best single tier of the whole."""
    whole_best: float
    rows: int


def for_quality(
    probabilities: NDArray[np.float64],
    correct: NDArray[np.bool_],
    prices: NDArray[np.float64],
    groups: NDArray[np.int64],
    quality: float,
    costs: NDArray[np.float64] | None = None,
    *,
    seed: int = 0,
) -> Calibrated:
    """`quality`: of the best single tier's share of right answers. Raises RoutingError where the rows do not say."""
    drawn = _drawn(probabilities, correct, prices, groups, costs, seed)
    reach = float(drawn.whole.qualities.max() / drawn.whole_best)
    if reach < quality:
        raise RoutingError(
            f"--quality is {quality:g}, and no threshold reaches that on these {len(correct):,} rows: the most is "
            f"{reach:.3f} of the best tier's {drawn.whole_best:.3f}."
        )
    meets = drawn.each.qualities >= quality * drawn.best
    _supported(meets, f"--quality is {quality:g}", len(correct))
    return _found(drawn, drawn.whole.qualities >= quality * drawn.whole_best, meets, cheapest=True)


def for_budget(
    probabilities: NDArray[np.float64],
    correct: NDArray[np.bool_],
    prices: NDArray[np.float64],
    groups: NDArray[np.int64],
    budget: Budget,
    costs: NDArray[np.float64],
    *,
    seed: int = 0,
) -> Calibrated:
    """The best quality for the money. Raises RoutingError where even the cheapest tier costs more."""
    drawn = _drawn(probabilities, correct, prices, groups, costs, seed)
    least = float(drawn.whole.costs.min())
    if least > budget.per_request:
        raise RoutingError(
            f"--budget is '{budget.text}', {budget.per_request:.3g} a request, and the cheapest way costs {least:.3g}; "
            "no threshold keeps to it."
        )
    meets = drawn.each.costs <= budget.per_request
    _supported(meets, f"--budget is '{budget.text}'", len(correct))
    return _found(drawn, drawn.whole.costs <= budget.per_request, meets, cheapest=False)


def _drawn(
    probabilities: NDArray[np.float64],
    correct: NDArray[np.bool_],
    prices: NDArray[np.float64],
    groups: NDArray[np.int64],
    costs: NDArray[np.float64] | None,
    seed: int,
) -> _Drawn:
    if len(correct) < LEAST_ROWS:
        raise RoutingError(
            f"{len(correct):,} labelled rows are too few for a threshold; {LEAST_ROWS} or more are needed that the "
            "policy was not trained on."
        )
    different = int((correct.any(axis=1) & ~correct.all(axis=1)).sum())
    if different < LEAST_DIFFERENT:
        raise RoutingError(
            f"The tiers differ in {different} of {len(correct):,} rows, and only those say who should answer; "
            f"{LEAST_DIFFERENT} or more are needed."
        )
    weights = draws(groups, DRAWS, seed)
    whole = curves(probabilities, correct, prices, costs)
    each = curves(probabilities, correct, prices, costs, weights, whole.thresholds)
    last = int(np.argmax(prices))
    there = np.eye(len(prices), dtype=np.bool_)[np.full(len(correct), last)]
    share = curves(probabilities, there, prices, None, weights, whole.thresholds).qualities
    whole_share = curves(probabilities, there, prices, None, None, whole.thresholds).qualities
    best = int(np.argmax(correct.mean(axis=0)))
    return _Drawn(
        whole,
        each,
        share,
        whole_share,
        (correct[:, best].astype(np.float64) @ weights) / weights.sum(axis=0),
        float(correct[:, best].mean()),
        len(correct),
    )


def _supported(meets: NDArray[np.bool_], target: str, rows: int) -> None:
    share = float(meets.any(axis=0).mean())
    if share < SUPPORTED:
        raise RoutingError(
            f"{target}, and {rows:,} rows do not support a threshold for it: it can be met in {share:.0%} of draws of "
            f"them, and must be in {SUPPORTED:.0%}; ask for less, or give more rows."
        )


def _found(
    drawn: _Drawn, whole_meets: NDArray[np.bool_], meets: NDArray[np.bool_], *, cheapest: bool
) -> Calibrated:
    """With `cheapest` the largest threshold that meets the target, else the smallest: the most that it allows."""
    last = len(drawn.whole.thresholds) - 1
    if cheapest:
        place, places = int(np.argmax(whole_meets[:, 0])), np.argmax(meets, axis=0)
    else:
        place = last - int(np.argmax(whole_meets[::-1, 0]))
        places = last - np.argmax(meets[::-1], axis=0)
    return Calibrated(
        Estimate.of(drawn.whole.thresholds[place], drawn.whole.thresholds[places]),
        Estimate.of(drawn.whole.qualities[place, 0], drawn.each.qualities[place]),
        Estimate.of(drawn.whole.costs[place, 0], drawn.each.costs[place]),
        Estimate.of(drawn.whole_dearest[place, 0], drawn.dearest[place]),
        drawn.rows,
    )
