"""Norm, rotation and the write into the cache: against NumPy, with equal bits on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

ops = pytest.importorskip("octavo._kernels", reason="the kernels are not built").ops

ISAS: list[str] = ops.isas()
F32 = np.float32


def normal(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape, F32)


def bf16(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to nearest even, by the definition: the nearer of two neighbours, of equally near ones the even."""
    low = x.view(np.uint32) >> 16
    values = [(n << 16).astype(np.uint32).view(F32).astype(np.float64) for n in (low, low + 1)]
    gap = [np.abs(v - x.astype(np.float64)) for v in values]
    up = (gap[1] < gap[0]) | ((gap[1] == gap[0]) & (low % 2 == 1))
    rounded: NDArray[np.uint16] = (low + up).astype(np.uint16)
    return rounded


@pytest.mark.parametrize("cols", [1, 15, 16, 33, 576, 1000])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_norm_is_its_formula(cols: int, offset: float) -> None:
    x, weight = 3 * normal(4, cols), normal(cols, seed=1)
    wide = x.astype(np.float64)
    expected = (
        wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-5) * (weight.astype(np.float64) + offset)
    )
    results = [ops.rms_norm(x, weight, 1e-5, offset, isa=isa) for isa in ISAS]
    np.testing.assert_allclose(results[0], expected, rtol=1e-6, atol=1e-6)
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_rms_norm_of_a_row_does_not_depend_on_the_others() -> None:
    x, weight = normal(9, 576), normal(576, seed=1)
    together = ops.rms_norm(x, weight, 1e-5)
    for r in range(9):
        np.testing.assert_array_equal(ops.rms_norm(x[r : r + 1], weight, 1e-5)[0], together[r])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize(("head_dim", "dim"), [(64, 64), (64, 32), (16, 16), (20, 10), (128, 128), (6, 2)])
def test_rope_rounds_each_operation_once(isa: str, interleaved: bool, head_dim: int, dim: int) -> None:
    x, half = normal(3, 5, head_dim), dim // 2
    angle = normal(3, half, seed=1) * 100
    cos, sin = np.cos(angle), np.sin(angle)
    first = np.s_[..., 0:dim:2] if interleaved else np.s_[..., :half]
    second = np.s_[..., 1:dim:2] if interleaved else np.s_[..., half:dim]
    expected, c, s = x.copy(), cos[:, None], sin[:, None]
    expected[first] = x[first] * c - x[second] * s
    expected[second] = x[first] * s + x[second] * c
    np.testing.assert_array_equal(ops.rope(x, cos, sin, interleaved, isa=isa), expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("half", [True, False])
def test_kv_write_lays_out_k_by_dimension_and_v_by_token(isa: str, half: bool) -> None:
    tokens, heads, dim, layers, first = 37, 3, 20, 2, 9
    keys, values = normal(tokens, heads, dim), normal(tokens, heads, dim, seed=1)
    kind = np.dtype(np.uint16 if half else F32)
    untouched = 0xA5
    memory = np.full((6, layers, 2 * 16 * heads * dim * kind.itemsize), untouched, np.uint8)
    table = np.array([4, 0, 5], np.int32)
    ops.kv_write(memory, 1, table, first, keys, values, kv="bf16" if half else "fp32", isa=isa)

    stored = memory.view(kind).reshape(6, layers, 2, -1)
    k = stored[:, :, 0].reshape(6, layers, heads, dim, 16)
    v = stored[:, :, 1].reshape(6, layers, heads, 16, dim)
    written = np.zeros(stored.shape, bool)
    written_k = written[:, :, 0].reshape(6, layers, heads, dim, 16)
    written_v = written[:, :, 1].reshape(6, layers, heads, 16, dim)
    for t in range(tokens):
        block, offset = table[(first + t) // 16], (first + t) % 16
        for array, mark, source in (
            (k[block, 1, :, :, offset], written_k[block, 1, :, :, offset], keys[t]),
            (v[block, 1, :, offset], written_v[block, 1, :, offset], values[t]),
        ):
            np.testing.assert_array_equal(array, bf16(source) if half else source)
            mark[:] = True
    written[:, :, 0], written[:, :, 1] = written_k.reshape(6, layers, -1), written_v.reshape(6, layers, -1)
    assert (memory.reshape(-1, kind.itemsize)[~written.reshape(-1)] == untouched).all()


def test_bf16_rounds_ties_to_even_and_keeps_nan() -> None:
    bits = np.array(
        [0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x7F7FFFFF, 0x80000001, 0x7F800001], np.uint32
    )
    x = bits.view(F32).reshape(1, 1, -1)
    memory = np.zeros((1, 1, 2 * 16 * 7 * 2), np.uint8)
    ops.kv_write(memory, 0, np.zeros(1, np.int32), 0, x, x, kv="bf16")
    stored = memory.view(np.uint16).reshape(-1)[16 * 7 :][:7]
    assert stored[:6].tolist() == [0x3F80, 0x3F82, 0x3F81, 0x3F80, 0x7F80, 0x8000]
    assert stored[6] & 0x7F80 == 0x7F80
    assert stored[6] & 0x7F


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dim", [20, 64])
def test_int8_k_and_v_have_a_scale_for_each_token_and_head(isa: str, dim: int) -> None:
    tokens, heads = 5, 3
    keys, values = normal(tokens, heads, dim), normal(tokens, heads, dim, seed=1)
    keys[1, 2], keys[2, 0, 3], values[4, 1, 0] = 0, np.inf, np.nan
    memory = np.full((1, 1, 2 * heads * 16 * (dim + 4)), 0xA5, np.uint8)
    ops.kv_write(memory, 0, np.zeros(1, np.int32), 3, keys, values, kv="int8", isa=isa)
    for half, source in zip(memory.reshape(2, heads, -1), (keys, values), strict=True):
        for head in range(heads):
            q = half[head, : 16 * dim].view(np.int8)
            q = q.reshape(dim, 16).T if source is keys else q.reshape(16, dim)
            scales = half[head, 16 * dim :].view(F32)
            for t in range(tokens):
                x = source[t, head]
                largest = np.abs(x).max()
                if not np.isfinite(largest):
                    assert np.isnan(scales[3 + t])  # and so does every output that sees it
                    continue
                assert scales[3 + t] == largest / F32(127)
                expected = np.rint(x * (F32(127) / (largest or F32(1))))
                np.testing.assert_array_equal(q[3 + t], expected)
            for t in (0, 1, 2, 8, 15):  # nobody's
                assert (q[t].view(np.uint8) == 0xA5).all()
                assert scales[t : t + 1].view(np.uint32) == 0xA5A5A5A5
