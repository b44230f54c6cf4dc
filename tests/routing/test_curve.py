"""The curve and its numbers, against sums by hand and a naive sort."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.routing.bootstrap import draws, interval
from octavo.routing.curve import choose, curves, points_of, prices_of, summaries

TWO = prices_of(None, 2)


def made(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    probabilities = random.random((rows, 2))
    return probabilities, random.random((rows, 2)) < probabilities


def test_two_tiers_are_a_sort_by_the_difference() -> None:
    probabilities, correct = made(400)
    order = np.argsort(probabilities[:, 0] - probabilities[:, 1])
    gains = correct[order, 1].astype(float) - correct[order, 0]
    reached = np.concatenate([[0], np.cumsum(gains)]) / gains.sum()
    found = summaries(curves(probabilities, correct, TWO))
    assert found.apgr[0] == pytest.approx(np.trapezoid(reached, dx=1 / 400))
    assert found.cpt50[0] == pytest.approx(np.argmax(reached >= 0.5) / 400, abs=1 / 400)
    assert found.cpt80[0] == pytest.approx(np.argmax(reached >= 0.8) / 400, abs=1 / 400)


@pytest.mark.slow
def test_a_score_that_knows_nothing_is_near_a_random_mix() -> None:
    _, correct = made(20_000, 1)
    correct[:, 1] |= np.random.default_rng(5).random(20_000) < 0.3
    blind = np.random.default_rng(2).random((20_000, 2))
    assert summaries(curves(blind, correct, TWO)).apgr[0] == pytest.approx(0.5, abs=0.06)


def test_the_oracle_s_share_is_known() -> None:
    correct = np.array([[0, 1]] * 10 + [[1, 1]] * 70 + [[0, 0]] * 20, dtype=bool)
    found = summaries(curves(correct.astype(float), correct, TWO), quality=1.0)
    assert found.at_quality[0] == pytest.approx(0.1) and found.cpt50[0] == pytest.approx(0.05)


def test_three_tiers_go_from_the_cheapest_to_the_dearest() -> None:
    random = np.random.default_rng(3)
    probabilities = np.sort(random.random((300, 3)), axis=1)
    correct = random.random((300, 3)) < probabilities
    prices = prices_of(np.array([1.0, 2.0, 11.0]), 3)
    assert prices.tolist() == pytest.approx([0, 0.1, 1])
    curve = curves(probabilities, correct, prices)
    assert curve.costs[0, 0] == 0 and curve.costs[-1, 0] == 1
    assert (np.diff(curve.costs[:, 0]) >= -1e-12).all()
    assert set(choose(probabilities, prices, 0.3).tolist()) == {0, 1, 2}


def test_points_go_from_end_to_end() -> None:
    probabilities, correct = made(500, 4)
    curve = curves(probabilities, correct, TWO, np.broadcast_to([1.0, 3.0], (500, 2)))
    points = points_of(curve)
    assert [round(one.share, 1) for one in points] == [round(0.1 * step, 1) for step in range(11)]
    assert (points[0].cost, points[-1].cost) == (1, 3)
    assert points[0].quality == points[0].random == correct[:, 0].mean()
    assert points[-1].quality == pytest.approx(correct[:, 1].mean())


def test_a_dearest_tier_that_is_no_better_has_no_numbers() -> None:
    correct = np.array([[1, 0], [0, 0], [1, 1]], dtype=bool)
    assert np.isnan(summaries(curves(np.eye(3, 2), correct, TWO)).apgr[0])


def test_draws_take_groups_whole() -> None:
    groups = np.array([0, 0, 1, 2, 2, 2])
    drawn = draws(groups, 200, 0)
    assert drawn.shape == (6, 200)
    assert (drawn[0] == drawn[1]).all() and (drawn[3] == drawn[5]).all()
    assert (drawn[[0, 2, 3]].sum(axis=0) == 3).all()
    assert interval(np.array([np.nan, 1.0, 2.0, 3.0])) == pytest.approx((1.05, 2.95))
    assert np.isnan(interval(np.array([np.nan]))[0])
