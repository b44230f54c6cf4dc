"""Learning the classifier from labels, with scikit-learn. Knows no file, and is needed only for training.

Nothing is chosen by looking at a test: all constants here are fixed, and what is fitted is fitted inside the rows that
are given. The blend is fitted on five grouped folds, each told by experts that have not seen it, nor near duplicates of
it; the same held-out probabilities choose the first threshold.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.errors import RoutingError
from octavo.routing.classifier import SIGN_WEIGHT, Classifier, Experts, Kernel, Linear, Scale, Space, sigmoid
from octavo.routing.duplicates import folds, groups_of
from octavo.routing.forest import Forest
from octavo.routing.grams import BUCKETS, counts, met, weighed, word_places
from octavo.routing.labels import Labels
from octavo.routing.signs import signs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["Trained", "check_library", "train"]

FOLDS = 5
LEAST_ROWS = 100
LEAST_OF_A_CLASS = 20
REGULARISATION = 0.5
"""scikit-learn's C of the linear model."""
TREES, LEAF, TRIED = 100, 8, 0.3
"""How many trees, the fewest rows of a leaf, and what share of the features a split may look at."""
DIRECTIONS, FOREST_DIRECTIONS = 128, 24
LANDMARKS = 1000
GAMMA, RIDGE = 1.0, 3.0
"""Of the kernel machine, whose rows have length 1 or so."""
KNOWN_QUANTILE = 0.005
"""So many of the prompts that were held out would be called strange."""
_DOCUMENTS = 2
"""A bucket that fewer prompts fill says nothing, and a word that fewer have is not known."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Trained:
    """A classifier, and what it says of its own rows when each was held out."""

    classifier: Classifier
    held_out: NDArray[np.float64]
    """[rows, tiers]."""


def check_library() -> None:
    """Raises RoutingError where scikit-learn is not installed."""
    try:
        import sklearn  # noqa: F401
    except ImportError:
        raise RoutingError(
            "Training needs scikit-learn, which is not installed; pip install 'octavo[route]'. Deciding does not."
        ) from None


def train(
    labels: Labels,
    vectors: NDArray[np.float32] | None = None,
    *,
    seed: int = 0,
    groups: NDArray[np.int64] | None = None,
    progress: Progress | None = None,
) -> Trained:
    """Learn from all rows. `vectors`: [rows, width] of the prompts; None trains without. `groups`: of near duplicates.

    Raises RoutingError for labels that are too few.
    """
    check_library()
    _check(labels)
    tell = progress or (lambda _: None)
    groups = groups_of(labels.prompts) if groups is None else groups
    table = _Table(labels, vectors)
    parts = folds(groups, FOLDS, seed)
    odds: NDArray[np.float64] | None = None
    known = np.zeros(len(labels))
    with _quietly():
        for part in range(FOLDS):
            tell(f"fold {part + 1} of {FOLDS}")
            inside, outside = np.flatnonzero(parts != part), np.flatnonzero(parts == part)
            if not len(outside):
                continue
            experts = table.fit(inside, seed)
            own, known[outside] = experts(
                [labels.prompts[row] for row in outside], None if vectors is None else vectors[outside]
            )
            if odds is None:
                odds = np.zeros((len(labels), *own.shape[1:]))
            odds[outside] = own
        assert odds is not None
        blend, bias = _blend(odds, labels.correct)
        tell("all rows")
        experts = table.fit(np.arange(len(labels)), seed)
    held_out = sigmoid((odds * blend).sum(axis=1) + bias)
    least = float(np.quantile(known, KNOWN_QUANTILE))
    return Trained(Classifier(experts, _f4(blend), _f4(bias), least), held_out)


def _check(labels: Labels) -> None:
    if len(labels) < LEAST_ROWS:
        raise RoutingError(
            f"{len(labels):,} rows are left for training; it needs {LEAST_ROWS} or more, and thousands to be good."
        )
    for tier, right in zip(labels.tiers, labels.correct.sum(axis=0).tolist(), strict=True):
        fewest = min(right, len(labels) - right)
        if fewest < LEAST_OF_A_CLASS:
            kind = "correct" if right == fewest else "wrong"
            raise RoutingError(
                f"Tier '{tier}' is {kind} in {fewest} of {len(labels):,} rows for training; it needs "
                f"{LEAST_OF_A_CLASS} of each kind."
            )


class _Table:
    """The features of all rows; experts are fitted on some of them."""

    def __init__(self, labels: Labels, vectors: NDArray[np.float32] | None) -> None:
        self._right = labels.correct
        self._vectors = vectors
        self._signs = signs(labels.prompts)
        self._counts = [counts(prompt) for prompt in labels.prompts]
        self._words = [word_places(prompt) for prompt in labels.prompts]

    def fit(self, rows: NDArray[np.int64], seed: int) -> Experts:
        right = self._right[rows].astype(np.float64)
        own = self._signs[rows]
        scale = _scale_of(own)
        scaled = scale(own)
        linear = self._linear(rows, scaled)
        space = kernel = None
        seen = scaled
        if self._vectors is not None:
            space = _space(self._vectors[rows].astype(np.float64), seed)
            places = space(self._vectors[rows])
            kernel = _kernel(np.hstack([places, SIGN_WEIGHT * scaled]), right, seed)
            seen = np.hstack([scaled, places[:, :FOREST_DIRECTIONS]])
        return Experts(scale, linear, _forest(seen, right, seed), FOREST_DIRECTIONS, space, kernel)

    def _linear(self, rows: NDArray[np.int64], scaled: NDArray[np.float64]) -> Linear:
        from scipy.sparse import csr_array, hstack
        from sklearn.linear_model import LogisticRegression

        filled = [self._counts[row] for row in rows.tolist()]
        every = np.concatenate([found for found, _ in filled])
        documents = np.bincount(every, minlength=BUCKETS)
        rarity = np.log((1 + len(rows)) / (1 + documents)) + 1
        rarity[documents < _DOCUMENTS] = 0
        rarity = _f4(rarity)
        values = np.concatenate([weighed(found, often, rarity) for found, often in filled])
        starts = np.concatenate([[0], np.cumsum([len(found) for found, _ in filled])])
        words = csr_array((values, every, starts), shape=(len(rows), BUCKETS))
        matrix = hstack([words, csr_array(SIGN_WEIGHT * scaled)], format="csr")
        models = [
            LogisticRegression(C=REGULARISATION, max_iter=500).fit(matrix, self._right[rows, tier])
            for tier in range(self._right.shape[1])
        ]
        weights = np.stack([model.coef_[0] for model in models], axis=1)
        bias = np.array([model.intercept_[0] for model in models])
        known = met([self._words[row] for row in rows.tolist()], _DOCUMENTS)
        return Linear(rarity, _f4(weights[:BUCKETS]), _f4(weights[BUCKETS:]), _f4(bias), known)


def _scale_of(rows: NDArray[np.float64]) -> Scale:
    deviation = rows.std(axis=0)
    return Scale(_f4(rows.mean(axis=0)), _f4(np.where(deviation > 1e-9, deviation, 1)))


def _space(vectors: NDArray[np.float64], seed: int) -> Space:
    from sklearn.decomposition import PCA

    scale = _scale_of(vectors)
    scaled = scale(vectors)
    kept = min(DIRECTIONS, *scaled.shape)
    directions = PCA(kept, random_state=seed).fit(scaled).components_.T
    length = float(np.sqrt(((scaled @ directions) ** 2).sum(axis=1).mean()))
    return Space(scale, _f4(directions / max(length, 1e-9)))


def _kernel(rows: NDArray[np.float64], right: NDArray[np.float64], seed: int) -> Kernel:
    from sklearn.kernel_approximation import Nystroem
    from sklearn.linear_model import Ridge

    count = min(LANDMARKS, len(rows) // 2)
    near = Nystroem(kernel="rbf", gamma=GAMMA, n_components=count, random_state=seed).fit(rows)
    mean = right.mean(axis=0)
    ridge = Ridge(alpha=RIDGE, fit_intercept=False).fit(near.transform(rows), right - mean)
    weights = near.normalization_.T @ np.atleast_2d(ridge.coef_).T
    return Kernel(_f4(near.components_), GAMMA, _f4(weights), _f4(mean))


def _forest(rows: NDArray[np.float64], right: NDArray[np.float64], seed: int) -> Forest:
    from sklearn.ensemble import ExtraTreesRegressor

    leaf = max(1, min(LEAF, len(rows) // 20))
    grown = ExtraTreesRegressor(
        TREES, min_samples_leaf=leaf, max_features=TRIED, random_state=seed, n_jobs=os.cpu_count()
    ).fit(rows, right)
    trees = [one.tree_ for one in grown.estimators_]
    roots = np.cumsum([0, *(tree.node_count for tree in trees)])
    feature, bound, left, right_child, values = [], [], [], [], []
    for root, tree in zip(roots, trees, strict=False):
        own = np.arange(tree.node_count)
        leaf_here = tree.children_left < 0
        feature.append(np.where(leaf_here, 0, tree.feature))
        bound.append(_bounds(tree.threshold))
        left.append(np.where(leaf_here, own, tree.children_left) + root)
        right_child.append(np.where(leaf_here, own, tree.children_right) + root)
        values.append(tree.value[:, :, 0])
    return Forest(
        roots[:-1].astype(np.int32),
        np.concatenate(feature).astype(np.int16),
        np.concatenate(bound),
        np.concatenate(left).astype(np.int32),
        np.concatenate(right_child).astype(np.int32),
        _f4(np.concatenate(values)),
        max(int(tree.max_depth) for tree in trees),
    )


def _bounds(exact: Any) -> NDArray[np.float32]:
    """The largest float32 that is not above: comparisons with float32 values come out the same."""
    near = exact.astype(np.float32)
    found: NDArray[np.float32] = np.where(near > exact, np.nextafter(near, np.float32(-np.inf)), near)
    return found


def _blend(
    odds: NDArray[np.float64], right: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weights [experts, tiers] and bias [tiers]. An expert that would count against itself is left out: it was worse
    than a guess on the groups that it had not seen, which says nothing for other prompts."""
    from sklearn.linear_model import LogisticRegression

    experts, tiers = odds.shape[1:]
    weights, bias = np.zeros((experts, tiers)), np.zeros(tiers)
    for tier in range(tiers):
        share = float(right[:, tier].mean())
        kept, bias[tier] = np.arange(experts), np.log(share / (1 - share))
        while len(kept):
            model = LogisticRegression(C=1.0, max_iter=500).fit(odds[:, kept, tier], right[:, tier])
            if (model.coef_[0] >= 0).all():
                weights[kept, tier], bias[tier] = model.coef_[0], model.intercept_[0]
                break
            kept = np.delete(kept, int(np.argmin(model.coef_[0])))
    return weights, bias


def _f4(values: Any) -> NDArray[np.float32]:
    return np.ascontiguousarray(values, dtype=np.float32)


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the library's remarks on convergence and joblib's on processors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
