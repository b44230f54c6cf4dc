"""Decision trees as flat arrays, walked all at once. Knows neither what they decide nor how they were grown.

A forest is the mean of its trees (Geurts et al. 2006, extremely randomised trees, is what `training` grows). The left
child of a node is the next node; a leaf is its own child.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Forest"]

_ROWS = 512
"""Prompts that are walked together: a megabyte of nodes."""


@dataclass(frozen=True)
class Forest:
    """All trees behind each other; a node goes left where its feature is at most its bound."""

    roots: NDArray[np.int32]
    """[trees]."""
    feature: NDArray[np.int16]
    """[nodes]; 0 in leaves."""
    bound: NDArray[np.float32]
    """[nodes]."""
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    """[nodes]."""
    values: NDArray[np.float32]
    """[nodes, outputs]."""
    depth: int

    def predict(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """[rows, features] to [rows, outputs]."""
        compared = rows.astype(np.float32)
        parts = [self._walk(compared[at : at + _ROWS]) for at in range(0, len(compared), _ROWS)]
        return np.concatenate(parts) if parts else np.zeros((0, self.values.shape[1]))

    def _walk(self, rows: NDArray[np.float32]) -> NDArray[np.float64]:
        each = np.arange(len(rows))[:, None]
        nodes = np.broadcast_to(self.roots, (len(rows), len(self.roots)))
        for _ in range(self.depth):
            goes_left = rows[each, self.feature[nodes]] <= self.bound[nodes]
            nodes = np.where(goes_left, self.left[nodes], self.right[nodes])
        found: NDArray[np.float64] = self.values[nodes].mean(axis=1, dtype=np.float64)
        return found

    def fits(self, features: int, outputs: int) -> bool:
        """Whether the arrays belong together: a walk then stays inside them."""
        nodes = len(self.feature)
        shapes = {self.bound.shape, self.left.shape, self.right.shape, self.feature.shape}
        if shapes != {(nodes,)} or self.values.shape != (nodes, outputs) or not nodes or not len(self.roots):
            return False
        inside = all(part.min() >= 0 and part.max() < nodes for part in (self.roots, self.left, self.right))
        return bool(
            inside and self.feature.min() >= 0 and self.feature.max() < features and 0 <= self.depth < 200
        )
