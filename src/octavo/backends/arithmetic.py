"""The numbers of the reference backend: products, attention, rotations, rounding. Knows no plan and no slot.

Each result is computed by operations that cannot see the neighbours: elementwise ones, sums along one row, and products
by `einsum`, which (unlike BLAS) neither changes its order with the shape nor starts threads.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.models.spec import Rope

__all__ = ["Floats", "attention", "bfloat16", "int8", "matmul", "rotations", "silu", "unchanged"]

Floats = NDArray[np.float32]

STRIP = 2048  # outputs at once in a product, so that the running sums stay in the first-level cache


def matmul(x: Floats, w: Floats) -> Floats:
    """x [rows, inputs] · w [inputs, outputs]; an output is ((x₀·w₀ + x₁·w₁) + x₂·w₂) + …, each step rounded.

    The order follows from the layout: `einsum` runs along the outputs, where memory is contiguous, and adds
    one input after the other. tests/backends/test_reference.py checks it.
    """
    y = np.empty((len(x), w.shape[1]), np.float32)
    for begin in range(0, w.shape[1], STRIP):
        strip = slice(begin, begin + STRIP)
        np.einsum("ri,io->ro", x, w[:, strip], out=y[:, strip])
    return y


def silu(x: Floats) -> Floats:
    return np.asarray(x / (np.float32(1) + np.exp(-x)))  # exp(−x) = ∞ gives the right −0


def attention(q: Floats, keys: Floats, values: Floats, scale: np.float32) -> Floats:
    """One query over the positions it sees.

    q [kv heads, heads per kv head, head_dim]; keys, values [kv heads, seen, head_dim]; returns q's shape.
    """
    scores = scale * np.einsum("kgd,kpd->kgp", q, keys)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed = np.einsum("kgp,kpd->kgd", weights, values)
    return np.asarray(mixed / weights.sum(axis=-1, keepdims=True))


def rotations(rope: Rope, positions: int) -> tuple[Floats, Floats]:
    """cos and sin of every rotary angle, [positions, dim/2], from float64."""
    frequencies = rope.theta ** (-np.arange(0, rope.dim, 2) / rope.dim)
    if rope.factors is not None:
        frequencies = frequencies / np.array(rope.factors)
    angles = np.arange(positions)[:, None] * frequencies
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def bfloat16(x: Floats) -> Floats:
    """Round to the nearest bfloat16, ties to even."""
    bits = x.view(np.uint32)
    rounded = bits + (np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)))
    return (rounded & np.uint32(0xFFFF0000)).view(np.float32)


def int8(x: Floats) -> Floats:
    """Round each token's head (the last axis) to 127 steps of its largest value."""
    scale = np.abs(x).max(axis=-1, keepdims=True) / np.float32(127)
    rounded: Floats = np.rint(x / np.where(scale > 0, scale, np.float32(1))) * scale
    return rounded


def unchanged(x: Floats) -> Floats:
    return x
