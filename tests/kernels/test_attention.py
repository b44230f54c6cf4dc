"""Attention over the paged cache: against float64, and equal bits however the work is cut, on every instruction set.

All memory that no position has written is NaN: one multiplication with it, even by zero, would show.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

ops = pytest.importorskip("octavo._kernels", reason="the kernels are not built").ops

ISAS: list[str] = ops.isas()
Floats = NDArray[np.float32]


VALUE_BYTES = {
    "bf16": lambda dim: 2 * dim,
    "fp32": lambda dim: 4 * dim,
    "int8": lambda dim: dim + 4,
}
"""Of K or V of one token and head."""


class Paged:
    """Random Q, K, V of one sequence, and K and V in a cache with shuffled blocks."""

    def __init__(
        self,
        tokens: int,
        heads: int = 9,
        kv_heads: int = 3,
        dim: int = 64,
        *,
        kv: str = "bf16",
        spread: float = 1,
    ) -> None:
        random = np.random.default_rng(tokens * 1000 + dim)
        self.tokens, self.kv_heads, self.kv, self.scale = tokens, kv_heads, kv, dim**-0.5
        self.q = random.standard_normal((tokens, heads, dim), np.float32) * np.float32(spread)
        self.k = random.standard_normal((tokens, kv_heads, dim), np.float32)
        self.v = random.standard_normal((tokens, kv_heads, dim), np.float32)
        blocks = -(-tokens // 16) + 2
        self.memory = np.full((blocks, 2, 2 * 16 * kv_heads * VALUE_BYTES[kv](dim)), 0xFF, np.uint8)
        self.table = random.permutation(blocks).astype(np.int32)
        ops.kv_write(self.memory, 1, self.table, 0, self.k, self.v, kv=kv)

    def attention(self, first: int, last: int, *, tile: int = 0, split: int = 0, isa: str = "") -> Floats:
        """Of queries first … last − 1."""
        result: Floats = ops.attention(
            self.memory,
            1,
            self.table,
            first,
            self.q[first:last],
            kv_heads=self.kv_heads,
            scale=self.scale,
            kv=self.kv,
            tile=tile,
            split=split,
            isa=isa,
        )
        return result

    def truth(self, first: int, last: int) -> NDArray[np.float64]:
        """In float64, with K and V as the cache holds them."""
        k, v = (self._stored(x).astype(np.float64) for x in (self.k, self.v))
        group = self.q.shape[1] // self.kv_heads
        out = np.empty((last - first, *self.q.shape[1:]))
        for t in range(first, last):
            for h in range(self.q.shape[1]):
                scores = k[: t + 1, h // group] @ self.q[t, h].astype(np.float64) * self.scale
                p = np.exp(scores - scores.max())
                out[t - first, h] = p @ v[: t + 1, h // group] / p.sum()
        return out

    def _stored(self, x: Floats) -> Floats:
        if self.kv == "fp32":
            return x
        if self.kv == "int8":
            largest = np.abs(x).max(axis=-1, keepdims=True)
            q = np.rint(x * (np.float32(127) / largest))
            stored: Floats = q * (largest / np.float32(127))
            return stored
        bits = x.view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)


@pytest.mark.parametrize("kv", VALUE_BYTES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"),
    [(9, 3, 64), (4, 4, 32), (8, 1, 96), (7, 1, 128), (2, 1, 80), (3, 1, 256), (2, 2, 36), (5, 1, 7)],
)
def test_attention_is_softmax_times_v(heads: int, kv_heads: int, dim: int, kv: str) -> None:
    paged = Paged(300, heads, kv_heads, dim, kv=kv)
    for first, last in ((0, 3), (15, 17), (250, 260), (299, 300)):
        expected = paged.truth(first, last)
        np.testing.assert_allclose(paged.attention(first, last), expected, rtol=1e-4, atol=3e-6)


def test_scores_far_apart_neither_overflow_nor_drown() -> None:
    paged = Paged(600, spread=400)
    np.testing.assert_allclose(paged.attention(590, 600), paged.truth(590, 600), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kv", VALUE_BYTES)
@pytest.mark.parametrize("dim", [64, 36])
def test_every_instruction_set_gives_the_same_bits(dim: int, kv: str) -> None:
    paged = Paged(530, 6, 2, dim, kv=kv)
    for split in (0, 1):
        first, *others = [paged.attention(500, 530, split=split, isa=isa) for isa in ISAS]
        for other in others:
            np.testing.assert_array_equal(other, first)


@settings(max_examples=60)
@given(st.data())
def test_the_cut_of_the_work_does_not_change_a_bit(data: st.DataObject) -> None:
    """Whole or in chunks, any tile of queries, any split of segments: what a query gets is its own business."""
    tokens = data.draw(st.sampled_from([1, 16, 17, 255, 256, 257, 513, 800]))
    heads, kv_heads = data.draw(st.sampled_from([(9, 3), (4, 4), (7, 1)]))
    paged = Paged(tokens, heads, kv_heads, 32, kv=data.draw(st.sampled_from(list(VALUE_BYTES))))
    chunk, tile, split = (
        data.draw(st.integers(1, 70)),
        data.draw(st.integers(0, 40)),
        data.draw(st.integers(0, 3)),
    )
    begin = max(0, tokens - data.draw(st.integers(1, 120)))
    whole = paged.attention(begin, tokens)
    for first in range(begin, tokens, chunk):
        last = min(first + chunk, tokens)
        cut = paged.attention(first, last, tile=tile, split=split)
        np.testing.assert_array_equal(cut, whole[first - begin : last - begin])


@pytest.mark.parametrize("kv", VALUE_BYTES)
def test_a_decode_equals_the_prefill_at_every_position(kv: str) -> None:
    paged = Paged(290, kv=kv)
    whole = paged.attention(0, 290)
    for t in range(290):
        np.testing.assert_array_equal(paged.attention(t, t + 1)[0], whole[t])


def test_a_nan_that_is_seen_reaches_the_output() -> None:
    paged = Paged(300)
    paged.q[299, 4, 0] = np.nan
    out = paged.attention(290, 300)
    assert np.isnan(out[9, 4]).all()
    assert np.isfinite(np.delete(out.reshape(90, 64), 9 * 9 + 4, axis=0)).all()
