"""Thresholds for a target, and the targets that rows do not support."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.errors import RoutingError
from octavo.routing.calibration import Budget, for_budget, for_quality
from octavo.routing.curve import choose, prices_of

TWO = prices_of(None, 2)


def rows(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    hard = random.random(count)
    probabilities = np.stack([0.95 - 0.7 * hard, 0.97 - 0.2 * hard], axis=1)
    return probabilities, random.random((count, 2)) < probabilities, np.arange(count)


def test_the_threshold_meets_the_quality_and_no_larger_one_does() -> None:
    probabilities, correct, groups = rows(800)
    found = for_quality(probabilities, correct, TWO, groups, 0.95)
    target = 0.95 * correct[:, 1].mean()

    def quality(threshold: float) -> float:
        return float(correct[np.arange(800), choose(probabilities, TWO, threshold)].mean())

    assert quality(found.threshold.value) >= target
    assert quality(found.threshold.value + 0.05) < target
    assert found.quality.value == pytest.approx(quality(found.threshold.value))
    assert found.threshold.low <= found.threshold.value <= found.threshold.high
    assert 0.2 < found.dearest_share.value < 0.8 and found.rows == 800
    again = for_quality(probabilities, correct, TWO, groups, 0.95)
    assert again == found


@pytest.mark.slow
def test_fewer_rows_are_less_sure() -> None:
    many, few = (for_quality(*_arranged(rows(count)), 0.9) for count in (1500, 250))
    assert few.threshold.high - few.threshold.low > many.threshold.high - many.threshold.low


def _arranged(
    made: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    return made[0], made[1], TWO, made[2]


@pytest.mark.slow
def test_a_budget_is_kept_and_used_up() -> None:
    probabilities, correct, groups = rows(1000)
    costs = np.broadcast_to(np.array([0.001, 0.01]), (1000, 2))
    budget = Budget.parse("$20/day", 5000)
    assert budget.per_request == pytest.approx(0.004)
    found = for_budget(probabilities, correct, TWO, groups, budget, costs)
    assert 0.0039 < found.cost.value <= 0.004
    with pytest.raises(RoutingError, match="the cheapest way costs 0"):
        for_budget(probabilities, correct, TWO, groups, Budget.parse("$1/day", 5000), costs)


def test_what_rows_do_not_support_is_refused() -> None:
    probabilities, correct, groups = rows(1000)
    with pytest.raises(RoutingError, match=r"--quality is 1.4, and no threshold reaches that .* the most is"):
        for_quality(probabilities, correct, TWO, groups, 1.4)
    with pytest.raises(RoutingError, match="60 labelled rows are too few"):
        for_quality(probabilities[:60], correct[:60], TWO, groups[:60], 0.9)
    alike = np.repeat(correct[:, :1], 2, axis=1)
    with pytest.raises(RoutingError, match="differ in 0 of 1,000 rows"):
        for_quality(probabilities, alike, TWO, groups, 0.9)


def test_a_target_that_only_some_draws_reach_is_refused() -> None:
    random = np.random.default_rng(3)
    probabilities = random.random((120, 2))
    correct = random.random((120, 2)) < probabilities
    said = []
    for quality in (1.0, 1.2, 1.25, 1.3, 1.35, 1.4, 2.0):
        try:
            for_quality(probabilities, correct, TWO, np.arange(120), quality)
        except RoutingError as error:
            said.append(str(error))
    assert "rows do not support a threshold for it: it can be met in" in said[0]
    assert "no threshold reaches that" in said[-1] and len(said) < 7


@pytest.mark.parametrize("text", ["20", "day/20", "-1/day", "$0/day", "$5/year", "$x/day"])
def test_a_budget_is_money_and_a_time(text: str) -> None:
    with pytest.raises(RoutingError, match="write money above 0 and a time"):
        Budget.parse(text, 1000)


def test_a_budget_by_time_needs_a_rate() -> None:
    assert Budget.parse("€0.002/request", None).per_request == 0.002
    with pytest.raises(RoutingError, match="--requests-per-day"):
        Budget.parse("$20/day", None)
