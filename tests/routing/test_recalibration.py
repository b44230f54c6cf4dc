"""Thresholds from outcomes that are known for one tier alone, beside the truth about both."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.errors import RoutingError
from octavo.routing.outcomes import Decided, Outcome
from octavo.routing.recalibration import evidence, threshold_for


def world(
    rows: int, share: float, seed: int = 0, threshold: float = 0.3
) -> tuple[dict[tuple[str | None, str], Decided], list[Outcome], NDArray[np.float64], NDArray[np.bool_]]:
    """The small tier is worse the higher the score; a share of the requests is explored. The truth is [rows, 2]."""
    random = np.random.default_rng(seed)
    scores = random.uniform(-0.2, 0.8, rows)
    truth = np.stack([random.random(rows) < 0.9 - np.maximum(scores, 0), random.random(rows) < 0.9], axis=1)
    decided: dict[tuple[str | None, str], Decided] = {}
    outcomes = []
    for row, score in enumerate(scores):
        place = int(score > threshold)
        explored = bool(random.random() < share)
        taken = 1 - place if explored else place
        name, tier = f"r{row}", ("small", "large")[taken]
        decided[None, name] = Decided(
            response_id=name, time_s=row, chosen=tier, tier=tier, score=float(score), policy="1",
            propensity=(share if explored else 1 - share), elsewhere=share,
        )  # fmt: skip
        good = float(truth[row, taken])
        outcomes.append(Outcome(response_id=name, time_s=row, tier=tier, source="thumbs", good=good))
    return decided, outcomes, scores, truth


def test_what_it_says_of_a_threshold_is_near_the_truth_about_both_tiers() -> None:
    inside = 0
    for seed in range(5):
        decided, outcomes, scores, truth = world(4000, 0.1, seed)
        found = threshold_for(evidence(decided, outcomes, ("small", "large"), ("1",), "said"), 0.9)
        true = truth[np.arange(len(scores)), (scores > found.threshold.value).astype(int)].mean()
        assert found.quality.value == pytest.approx(true, abs=0.06)
        assert true >= 0.85 * truth[:, 1].mean()
        inside += found.quality.low <= true <= found.quality.high
        # A naive mean, without propensities, would take the share of what was decided for the share of all.
        assert found.dearest_share.value == pytest.approx((scores > found.threshold.value).mean(), abs=0.06)
    assert inside >= 4


def test_without_exploration_nothing_is_known_of_the_other_tier() -> None:
    decided, outcomes, _, _ = world(500, 0.0)
    found = evidence(decided, outcomes, ("small", "large"), ("1",), "said")
    assert (len(found.scores), found.left_out) == (0, 500)
    with pytest.raises(RoutingError, match=r"0 outcomes can be used.*explore_share"):
        threshold_for(found, 0.9)


def test_outcomes_of_another_classifier_s_scores_are_left_out() -> None:
    decided, outcomes, _, _ = world(500, 0.2)
    assert evidence(decided, outcomes, ("small", "large"), ("7",), "said").left_out == 500


def test_a_target_that_the_outcomes_do_not_support_has_no_threshold() -> None:
    decided, outcomes, _, _ = world(300, 0.1)
    with pytest.raises(RoutingError, match="do not support a threshold"):
        threshold_for(evidence(decided, outcomes, ("small", "large"), ("1",), "said"), 1.4)


def test_a_judge_s_pair_is_known_for_both_and_the_last_word_of_a_user_counts() -> None:
    decided, outcomes, _, _ = world(2, 0.0)
    both = [
        Outcome(response_id="r0", time_s=0, tier=tier, source="judge", good=good)
        for tier, good in (("small", 0.0), ("large", 1.0))
    ]
    found = evidence(decided, both, ("small", "large"), ("1",), "judge")
    assert found.good.tolist() == [0.0, 1.0]
    assert found.propensity.tolist() == [1.0, 1.0]
    assert set(found.requests.tolist()) == {0}
    decided, outcomes, _, _ = world(1, 0.5)
    again = [*outcomes, Outcome(response_id="r0", time_s=9, tier=outcomes[0].tier, source="score", good=0.25)]
    assert evidence(decided, again, ("small", "large"), ("1",), "said").good.tolist() == [0.25]
