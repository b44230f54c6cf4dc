"""How good a router is on rows that it never saw: one table, with intervals and with what it must beat. Knows no file.

Beside the router stand a random mix of the tiers, the best single tier, the oracle (who knows the labels), and the
plain baseline: TF-IDF of words, one logistic regression for each tier, their difference as the score, nothing tuned.
Gains are of the same draws of the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from octavo.routing.bootstrap import draws
from octavo.routing.calibration import Estimate
from octavo.routing.curve import DRAWS, Summary, choose, curves, prices_of, summaries
from octavo.routing.training import check_library

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from octavo.routing.labels import Labels

__all__ = [
    "Kept", "Part", "Score", "calibration_error", "families", "judged", "kept_by", "plain_probabilities", "score_of",
]  # fmt: skip

LEAST_ROWS = 30
"""Of a task that is reported by itself."""
BINS = 10


@dataclass(frozen=True)
class Score:
    """A router on some rows."""

    apgr: Estimate
    cpt50: Estimate
    cpt80: Estimate
    at_quality: Estimate
    """The share of the cost at the wanted share of the dearest tier's quality."""


@dataclass(frozen=True)
class Part:
    """All rows, or those of one task."""

    name: str
    rows: int
    accuracy: dict[str, float]
    """By tier."""
    router: Score
    random_at_quality: float
    oracle: Score
    plain: Score | None
    gain_over_plain: Estimate | None
    """APGR, on the same draws."""
    gain_over_random: Estimate


@dataclass(frozen=True)
class Kept:
    """What a threshold brings on rows that it was not chosen on."""

    threshold: float
    of_best: float
    """The share of right answers, over that of the best single tier."""
    dearest_share: float


def kept_by(
    probabilities: NDArray[np.float64],
    correct: NDArray[np.bool_],
    prices: NDArray[np.float64],
    threshold: float,
) -> Kept:
    """`probabilities`, `correct`: [rows, tiers]."""
    chosen = choose(probabilities, prices, threshold)
    right = float(correct[np.arange(len(correct)), chosen].mean())
    best = float(correct.mean(axis=0).max())
    share = float((chosen == int(np.argmax(prices))).mean())
    return Kept(threshold, right / best if best else float("nan"), share)


def judged(
    labels: Labels,
    probabilities: NDArray[np.float64],
    groups: NDArray[np.int64],
    *,
    plain: NDArray[np.float64] | None = None,
    quality: float = 0.95,
    seed: int = 0,
    costs: NDArray[np.float64] | None = None,
) -> list[Part]:
    """All rows together first, then each family of tasks that has enough of them.

    `probabilities`, `plain`: [rows, tiers]. `costs`: [tiers], of a request; without them the tiers' order is all.
    """
    prices = prices_of(costs, len(labels.tiers))
    parts = {"all": np.arange(len(labels))}
    if labels.tasks is not None:
        named = np.array(families(labels.tasks))
        names = sorted(set(named.tolist()))
        if len(names) > 1:
            parts |= {name: np.flatnonzero(named == name) for name in names}
    return [
        _part(name, labels, rows, probabilities, plain, groups, prices, quality, seed)
        for name, rows in parts.items()
        if name == "all" or len(rows) >= LEAST_ROWS
    ]


def families(tasks: Sequence[str]) -> list[str]:
    """Tasks as they are, or, where there are more than a dozen, what stands before the first `_` of each."""
    if len(set(tasks)) <= 12:
        return list(tasks)
    return [task.partition("_")[0] for task in tasks]


def score_of(whole: Summary, drawn: Summary) -> Score:
    """Of one summary, and of its draws."""
    return Score(
        *(
            Estimate.of(getattr(whole, name)[0], getattr(drawn, name))
            for name in ("apgr", "cpt50", "cpt80", "at_quality")
        )
    )


def calibration_error(probabilities: NDArray[np.float64], correct: NDArray[np.bool_]) -> NDArray[np.float64]:
    """[tiers]: the mean distance of probability and share of right answers over ten bins of as many rows each."""
    found = np.zeros(correct.shape[1])
    for tier in range(correct.shape[1]):
        order = np.argsort(probabilities[:, tier], kind="stable")
        for part in np.array_split(order, BINS):
            if len(part):
                off = abs(float(probabilities[part, tier].mean() - correct[part, tier].mean()))
                found[tier] += len(part) / len(order) * off
    return found


def plain_probabilities(inside: Labels, outside: Sequence[str]) -> NDArray[np.float64]:
    """[rows, tiers] of the plain baseline, trained on `inside`. Raises RoutingError without scikit-learn."""
    check_library()
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    words = TfidfVectorizer()
    known, asked = words.fit_transform(inside.prompts), words.transform(outside)
    return np.stack(
        [
            LogisticRegression(max_iter=500).fit(known, inside.correct[:, tier]).predict_proba(asked)[:, 1]
            for tier in range(len(inside.tiers))
        ],
        axis=1,
    )


def _part(
    name: str,
    labels: Labels,
    rows: NDArray[np.int64],
    probabilities: NDArray[np.float64],
    plain: NDArray[np.float64] | None,
    groups: NDArray[np.int64],
    prices: NDArray[np.float64],
    quality: float,
    seed: int,
) -> Part:
    correct = labels.correct[rows]
    weights = draws(groups[rows], DRAWS, seed)

    def both(scores: NDArray[np.float64]) -> tuple[Summary, Summary]:
        whole = curves(scores, correct, prices)
        each = curves(scores, correct, prices, None, weights, whole.thresholds)
        return summaries(whole, quality), summaries(each, quality)

    own, own_drawn = both(probabilities[rows])
    oracle = both(correct.astype(np.float64))
    gain = None
    other = None
    if plain is not None:
        plain_whole, plain_drawn = both(plain[rows])
        other = score_of(plain_whole, plain_drawn)
        gain = Estimate.of(own.apgr[0] - plain_whole.apgr[0], own_drawn.apgr - plain_drawn.apgr)
    means = correct.mean(axis=0)
    cheapest, dearest = means[int(np.argmin(prices))], means[int(np.argmax(prices))]
    spread = dearest - cheapest
    return Part(
        name,
        len(rows),
        dict(zip(labels.tiers, means.tolist(), strict=True)),
        score_of(own, own_drawn),
        float(np.clip((quality * dearest - cheapest) / spread, 0, 1)) if spread > 0 else float("nan"),
        score_of(*oracle),
        other,
        gain,
        Estimate.of(own.apgr[0] - 0.5, own_drawn.apgr - 0.5),
    )
