"""Packing: what goes in comes out, to the bit; what is no tensor is refused."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.packed import (
    FORMATS,
    LAYOUTS,
    Q4_1,
    Q8_0,
    QUANTISED,
    columns,
    kernels,
    random_raw,
    random_weights,
)

ops = kernels.ops


@pytest.mark.parametrize("isa", ops.isas())
@pytest.mark.parametrize("wild", [False, True])
@pytest.mark.parametrize("ggml_type", FORMATS)
def test_every_weight_comes_back(ggml_type: int, wild: bool, isa: str) -> None:
    weights = random_weights(ggml_type, 37, columns(ggml_type, 96), seed=ggml_type, wild=wild)
    for row in range(37):
        np.testing.assert_array_equal(ops.dequantize_row(weights.matrix, row, isa=isa), weights.values[row])


@pytest.mark.parametrize("isa", ops.isas())
def test_a_scale_multiplies_the_weight_last(isa: str) -> None:
    weights = random_weights(Q4_1, 16, 64)
    expected = np.float32(1.7) * weights.values[3]
    np.testing.assert_array_equal(ops.dequantize_row(weights.matrix, 3, 1.7, isa=isa), expected)


@pytest.mark.parametrize("ggml_type", FORMATS)
def test_missing_rows_are_packed_as_zeros(ggml_type: int) -> None:
    cols = columns(ggml_type, 64)
    raw = random_raw(ggml_type, 17, cols, seed=1)
    whole = np.concatenate([raw, np.zeros(raw.size // 17 * 15, np.uint8)])
    packed, filled = (kernels.pack_matrix(r, ggml_type, n, cols)[3] for r, n in ((raw, 17), (whole, 32)))
    # A block of zeros has weights or scales that are not zero bits in some types; where there is no row, all are.
    assert not packed[packed != filled].any()
    np.testing.assert_array_equal(packed[: packed.size // 2], filled[: packed.size // 2])


def test_columns_beside_columns_and_rows_beside_rows() -> None:
    """The layout of octavo.h, byte by byte, for one strip of Q4_1."""
    raw = random_raw(Q4_1, 16, 64, seed=2)
    packed = kernels.pack_matrix(raw, Q4_1, 16, 64)[3]
    blocks = raw.reshape(16, 2, LAYOUTS[Q4_1].block_bytes)
    groups = packed.reshape(2, 320)
    assert packed.ctypes.data % 64 == 0
    for group in range(2):
        np.testing.assert_array_equal(groups[group, :32], blocks[:, group, :2].reshape(-1))
        np.testing.assert_array_equal(groups[group, 32:64], blocks[:, group, 2:4].reshape(-1))
        vectors = groups[group, 64:].reshape(4, 16, 4)
        np.testing.assert_array_equal(vectors, blocks[:, group, 4:].reshape(16, 4, 4).transpose(1, 0, 2))


@pytest.mark.parametrize("ggml_type", QUANTISED)
def test_large_matrices_are_packed_by_all_threads_alike(ggml_type: int) -> None:
    weights = random_weights(ggml_type, 1000, columns(ggml_type, 64))
    for row in (0, 15, 16, 511, 512, 999):
        np.testing.assert_array_equal(ops.dequantize_row(weights.matrix, row), weights.values[row])


@pytest.mark.parametrize(
    ("ggml_type", "rows", "cols", "size", "message"),
    [
        (16, 16, 256, 2304, r"ggml_type 16: the native backend packs F32 \(0\), .*BF16 \(30\)"),
        (Q4_1, 0, 32, 0, "rows 0: must be from 1"),
        (Q4_1, 1 << 40, 32, 0, "rows 1099511627776: must be from 1"),
        (Q4_1, -1, 32, 0, "rows -1: must be from 1"),
        (Q4_1, 16, 48, 480, "cols 48: must be a multiple of 32"),
        (Q4_1, 16, 1 << 20, 0, "cols 1048576: must be from 1 to 32768"),
        (0, 16, 0, 0, "cols 0: must be from 1"),
        (Q8_0, 16, 32, 543, "raw has 543 bytes: 16 × 32 weights of ggml_type 8 are 544"),
        (Q8_0, 16, 32, 545, "raw has 545 bytes"),
    ],
)
def test_what_is_no_tensor_is_refused(ggml_type: int, rows: int, cols: int, size: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kernels.pack_matrix(np.zeros(size, np.uint8), ggml_type, rows, cols)


def test_nothing_is_converted_in_silence() -> None:
    raw = random_raw(Q4_1, 16, 32, seed=0)
    for wrong in (raw.astype(np.int16), np.repeat(raw, 2)[::2], raw.reshape(16, -1), list(raw)):
        with pytest.raises(TypeError):
            kernels.pack_matrix(wrong, Q4_1, 16, 32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"container": "u5"}, "container 'u5': must be u4, u4k, u4h, u8, u8k, u8h, bf16 or f32"),
        ({"cols": 16}, "cols 16: must be a multiple of 32"),
        ({"rows": 17}, "packed has 320 bytes: must be 640"),
        ({"rows": 0}, "rows 0: out of range"),
        ({"zero_point": 8}, "zero_point 8 with has_min: no matrix in 'u4'"),
        ({"has_min": False, "zero_point": 256}, "zero_point 256 without has_min"),
        ({"container": "f32"}, "zero_point 0 with has_min: no matrix in 'f32'"),
    ],
)
def test_a_matrix_fits_its_bytes(changes: dict[str, object], message: str) -> None:
    packed = random_weights(Q4_1, 16, 32).packed
    fields = {"container": "u4", "rows": 16, "cols": 32, "zero_point": 0, "has_min": True} | changes
    with pytest.raises(ValueError, match=message):
        ops.Matrix(packed, **fields)
