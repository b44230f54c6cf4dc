"""How likely each tier's answer is to be right, from a prompt alone. Knows arithmetic on saved arrays, no training.

Two or three experts look at a prompt: a linear model of hashed words and letters and of the cheap signs; a forest over
the signs (and the main directions of the prompt's vector); with a vector, a kernel machine that compares it with
landmarks. For each tier a logistic blend of their log-odds, fitted on prompts that the experts had not seen, makes one
calibrated probability of them (stacking: Wolpert 1992; the last step is Platt's scaling). NumPy is all it needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from octavo.routing.forest import Forest
from octavo.routing.grams import counts, known_share, weighed, word_places
from octavo.routing.signs import signs

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Classifier", "Experts", "Kernel", "Linear", "Scale", "Space", "log_odds", "sigmoid"]

SIGN_WEIGHT = 0.1
"""Of a standardised sign beside words in the linear model, and beside a vector of length 1 in the kernel."""
_MOST = 4.0
"""Standard deviations: a sign that is further off counts as that."""
_SURE = 0.005
"""A forest or a kernel machine is never surer than this."""


def sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 / (1 + e⁻ˣ)."""
    found: NDArray[np.float64] = 1.0 / (1.0 + np.exp(-np.clip(x, -60, 60)))
    return found


def log_odds(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of estimates of probabilities, which may lie outside of 0 … 1."""
    p = np.clip(p, _SURE, 1 - _SURE)
    found: NDArray[np.float64] = np.log(p / (1 - p))
    return found


@dataclass(frozen=True)
class Scale:
    """Numbers of any kind to mean 0 and deviation 1."""

    mean: NDArray[np.float32]
    deviation: NDArray[np.float32]

    def __call__(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        found: NDArray[np.float64] = np.clip((rows - self.mean) / self.deviation, -_MOST, _MOST)
        return found


@dataclass(frozen=True)
class Linear:
    """Log-odds that are sums over words, letters and signs."""

    rarity: NDArray[np.float32]
    """[buckets]: idf, 0 for buckets that were never filled in training."""
    weights: NDArray[np.float32]
    """[buckets, tiers]."""
    sign_weights: NDArray[np.float32]
    """[signs, tiers]."""
    bias: NDArray[np.float32]
    """[tiers]."""
    met: NDArray[np.uint8]
    """[bytes]: which words were met at all."""

    def __call__(self, text: str, scaled: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
        """Log-odds [tiers], and what share of the words was met. `scaled`: the signs [signs]."""
        found, often = counts(text)
        values = weighed(found, often, self.rarity)
        words: NDArray[np.float64] = values @ self.weights[found]
        known = known_share(word_places(text), self.met)
        return words + SIGN_WEIGHT * (scaled @ self.sign_weights) + self.bias, known


@dataclass(frozen=True)
class Space:
    """Vectors to their main directions."""

    scale: Scale
    directions: NDArray[np.float32]
    """[width, kept]; scaled so that a projected vector has length 1 on average."""

    def __call__(self, vectors: NDArray[np.float32]) -> NDArray[np.float64]:
        found: NDArray[np.float64] = self.scale(vectors.astype(np.float64)) @ self.directions
        return found


@dataclass(frozen=True)
class Kernel:
    """Probabilities from the nearness to landmarks: exp(−gamma · distance²)."""

    landmarks: NDArray[np.float32]
    """[landmarks, kept + signs]."""
    gamma: float
    weights: NDArray[np.float32]
    """[landmarks, tiers]."""
    bias: NDArray[np.float32]

    def __call__(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """[rows, kept + signs] to [rows, tiers]."""
        points, squares, weights = self._wide
        distances = np.maximum((rows**2).sum(axis=1)[:, None] + squares - 2 * rows @ points, 0)
        found: NDArray[np.float64] = np.exp(-self.gamma * distances) @ weights + self.bias
        return found

    @cached_property
    def _wide(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Landmarks [kept + signs, landmarks], their squared lengths [landmarks], and the weights, as sums take them:
        widening them for each prompt would take longer than the sums."""
        points = self.landmarks.astype(np.float64)
        squares: NDArray[np.float64] = (points**2).sum(axis=1)
        return np.ascontiguousarray(points.T), squares, self.weights.astype(np.float64)


@dataclass(frozen=True)
class Experts:
    """All that looks at a prompt, before the blend."""

    scale: Scale
    linear: Linear
    forest: Forest
    forest_directions: int
    """How many of the vector's directions the forest reads, behind the signs."""
    space: Space | None
    kernel: Kernel | None

    def __call__(
        self, texts: Sequence[str], vectors: NDArray[np.float32] | None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Log-odds [texts, experts, tiers], and the share of known words [texts]."""
        scaled = self.scale(signs(texts))
        pairs = [self.linear(text, own) for text, own in zip(texts, scaled, strict=True)]
        odds = [np.array([pair[0] for pair in pairs])]
        seen = scaled
        if self.space is not None and self.kernel is not None:
            assert vectors is not None, "this classifier was trained with vectors"
            places = self.space(vectors)
            seen = np.hstack([scaled, places[:, : self.forest_directions]])
            odds.append(log_odds(self.kernel(np.hstack([places, SIGN_WEIGHT * scaled]))))
        odds.append(log_odds(self.forest.predict(seen)))
        return np.stack(odds, axis=1), np.array([pair[1] for pair in pairs])


@dataclass(frozen=True)
class Classifier:
    """Experts and their blend."""

    experts: Experts
    blend: NDArray[np.float32]
    """[experts, tiers]."""
    bias: NDArray[np.float32]
    """[tiers]."""
    least_known: float
    """A prompt of whose words a smaller share is known is unlike all that was learnt from."""

    @property
    def needs_vectors(self) -> bool:
        """Whether prompts must come with their vectors."""
        return self.experts.space is not None

    def __call__(
        self, texts: Sequence[str], vectors: NDArray[np.float32] | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """The probability that each tier is right [texts, tiers], and which texts are too strange to tell [texts].

        `vectors`: [texts, width], where `needs_vectors`.
        """
        odds, known = self.experts(texts, vectors)
        return sigmoid((odds * self.blend).sum(axis=1) + self.bias), known < self.least_known
