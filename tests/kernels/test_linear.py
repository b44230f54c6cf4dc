"""Products: against NumPy, with equal bits on every instruction set and beside any other rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.kernels.packed import (
    CONTAINERS,
    FORMATS,
    LAYOUTS,
    Q2_K,
    Q4_0,
    Q4_1,
    Q6_K,
    Q8_0,
    QUANTISED,
    Weights,
    columns,
    dequantised,
    kernels,
    random_raw,
    random_weights,
)

ops = kernels.ops
ISAS: list[str] = ops.isas()
Floats = NDArray[np.float32]


def activations(rows: int, cols: int, seed: int = 0, size: float = 1.0) -> Floats:
    """Rows of about `size`; some are zero, some have a value that dwarfs the others."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, cols)).astype(np.float32)
    x[rng.random(rows) < 0.1] = 0
    x[rng.random((rows, cols)) < 0.01] *= 1000
    x[rng.random((rows, cols)) < 0.1] = 0
    return (x * np.float32(size)).astype(np.float32)


def quantised(x: Floats) -> tuple[NDArray[np.int8], Floats, NDArray[np.int32], NDArray[np.int8]]:
    """The kernel's quantisation, by its definition."""
    groups = x.reshape(x.shape[0], -1, 32)
    with np.errstate(over="ignore", under="ignore"):
        energy = groups**2
        heavy = energy > np.float32(0.5) * energy.sum(axis=2, dtype=np.float32)[..., None]
    outlier = np.where(heavy.any(axis=2), heavy.argmax(axis=2), -1)
    groups = np.where(heavy, np.float32(0), groups)
    largest = np.abs(groups).max(axis=2)
    used = largest >= np.float32(2.0**-100)
    safe = np.where(used, largest, np.float32(1))
    q = np.rint(groups * (np.float32(127) / safe)[..., None]) * used[..., None]
    scale = (safe / np.float32(127) * used).astype(np.float32)
    sums = q.reshape(x.shape[0], -1, 16).sum(axis=2).astype(np.int32)
    return q.astype(np.int8).reshape(x.shape), scale, sums, outlier.astype(np.int8)


def product(weights: Weights, x: Floats, ggml_type: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """W·x in double precision of what the kernel multiplies, and how far single precision may be off."""
    seen = x.astype(np.float64)
    if ggml_type in QUANTISED:
        q, scale, _, outlier = quantised(x)
        groups = q.reshape(*scale.shape, 32).astype(np.float64) * scale[..., None]
        exact = np.arange(32) == outlier[..., None]
        seen = np.where(exact, x.reshape(exact.shape), groups).reshape(x.shape)
    wide = weights.values.astype(np.float64)
    # A minimum and a scale may cancel in a weight, but are rounded apart.
    parts = np.abs(wide).max(axis=1) * 16 * np.abs(seen).sum(axis=1)[:, None]
    return seen @ wide.T, parts * 1e-6 + 1e-37


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("size", [1.0, 1e4, 1e-20, 1e-38, 0.0])
def test_quantisation_is_its_definition(size: float, isa: str) -> None:
    x = activations(40, 192, size=size)
    for got, expected in zip(ops.quantize(x, isa=isa), quantised(x), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("isa", ISAS)
def test_halves_round_to_even(isa: str) -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, :7] = [127, 0.5, 1.5, 2.5, -0.5, -1.5, -127]
    assert ops.quantize(x, isa=isa)[0][0, :7].tolist() == [127, 0, 2, 2, 0, -2, -127]


@pytest.mark.parametrize("isa", ISAS)
def test_a_value_of_half_the_energy_is_an_outlier(isa: str) -> None:
    """More than half: strictly. It counts as 0 in its group, whose scale is then the others'."""
    x = np.zeros((1, 5 * 32), np.float32)
    x[0, [3, 31]] = 8, -8  # none has more than half
    x[0, 32 + 31] = -100  # alone in its group
    x[0, 64:96] = 1
    x[0, 64 + 7] = 6  # 36 of 67
    x[0, 96:128] = 1
    x[0, 96 + 7] = 5.5  # 30.25 of 61.25
    x[0, 128 + 5] = 1e30  # its square overflows
    q, scale, sums, outlier = ops.quantize(x, isa=isa)
    assert outlier.tolist() == [[-1, 31, 7, -1, -1]]
    assert scale[0, 1] == 0
    assert not q[0, 32:64].any()
    assert scale[0, 2] == np.float32(1) / np.float32(127)
    assert q[0, 64 + 7] == 0
    assert sums[0, 4:6].tolist() == [15 * 127, 16 * 127]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("ggml_type", QUANTISED)
def test_outliers_are_multiplied_exactly(ggml_type: int, isa: str) -> None:
    """One value a group and nothing else: the product has the fp32 weights' own error only, at every place."""
    cols = columns(ggml_type, 96)
    weights = random_weights(ggml_type, 40, cols)
    x = np.zeros((cols, cols), np.float32)
    np.fill_diagonal(x, np.random.default_rng(3).standard_normal(cols))
    y = ops.linear(weights.matrix, x, isa=isa)
    expected = weights.values.T.astype(np.float64) * np.diag(x)[:, None].astype(np.float64)
    np.testing.assert_allclose(y, expected, rtol=3e-7, atol=1e-30)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("ggml_type", QUANTISED)
def test_outliers_in_hundreds_of_columns_stay_in_their_rows(ggml_type: int, isa: str) -> None:
    """More columns than wait at once, some shared by rows, some not, and rows with one in every group or in none."""
    cols = columns(ggml_type, 640)
    weights = random_weights(ggml_type, 40, cols)
    random = np.random.default_rng(5)
    x = activations(32, cols)
    groups = np.arange(0, cols, 32)
    for row, share in enumerate(np.linspace(0, 1, 32)):
        heavy = groups[random.random(len(groups)) < share]
        x[row, heavy + random.integers(0, 32 if row % 2 else 2, len(heavy))] = (
            random.choice([-1, 1], len(heavy)) * 90
        )
    together = ops.linear(weights.matrix, x, isa=isa)
    expected, tolerance = product(weights, x, ggml_type)
    assert (np.abs(together - expected) <= tolerance).all()
    for row in range(32):
        np.testing.assert_array_equal(ops.linear(weights.matrix, x[row : row + 1], isa=isa)[0], together[row])


@settings(max_examples=60)
@given(
    ggml_type=st.sampled_from(FORMATS),
    rows=st.integers(1, 33),
    outputs=st.integers(1, 70),
    groups=st.integers(1, 5),
    size=st.sampled_from([1.0, 1e4, 1e-3, 0.0]),
    seed=st.integers(0, 1000),
)
def test_linear_is_the_product(
    ggml_type: int, rows: int, outputs: int, groups: int, size: float, seed: int
) -> None:
    cols = columns(ggml_type, 32 * groups)
    weights = random_weights(ggml_type, outputs, cols, seed)
    x = activations(rows, cols, seed, size)
    results = [ops.linear(weights.matrix, x, isa=isa) for isa in ISAS]
    expected, tolerance = product(weights, x, ggml_type)
    assert (np.abs(results[0] - expected) <= tolerance).all()
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@settings(max_examples=30)
@given(
    ggml_type=st.sampled_from(FORMATS),
    rows=st.integers(1, 9),
    outputs=st.integers(1, 40),
    size=st.sampled_from([1e4, 1e-38, 1e30, 1.0]),
    seed=st.integers(0, 1000),
)
def test_extreme_scales_have_equal_bits(
    ggml_type: int, rows: int, outputs: int, size: float, seed: int
) -> None:
    """Overflow, underflow and cancellation are no excuse."""
    cols = columns(ggml_type, 64)
    weights = random_weights(ggml_type, outputs, cols, seed, wild=True)
    x = activations(rows, cols, seed, size)
    results = [ops.linear(weights.matrix, x, isa=isa) for isa in ISAS]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("ggml_type", QUANTISED)
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_products_do_not_saturate(ggml_type: int, sign: int, isa: str) -> None:
    """All weights and activations at their ends: where a 16-bit sum would wrap or saturate first."""
    cols = columns(ggml_type, 64)
    layout = LAYOUTS[ggml_type]
    raw = random_raw(ggml_type, 16, cols, 0).reshape(4, 4, -1, layout.block_bytes)
    for part, fill in zip(raw, (0x00, 0xFF, 0x80, 0x7F), strict=True):
        part[...] = fill
    for at in layout.halves:
        raw[..., at : at + 2] = np.float16(1).reshape(1).view(np.uint8)
    values = dequantised(raw.reshape(-1), ggml_type, 16, cols).astype(np.float64)
    container, zero_point, has_min, packed = kernels.pack_matrix(raw.reshape(-1), ggml_type, 16, cols)
    matrix = ops.Matrix(packed, container, 16, cols, zero_point, has_min)
    for rows in range(1, 9):
        y = ops.linear(matrix, np.full((rows, cols), sign * 127, np.float32), isa=isa)
        expected = np.broadcast_to(sign * 127 * values.sum(axis=1), y.shape)
        np.testing.assert_allclose(y, expected, rtol=1e-6)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("ggml_type", FORMATS)
def test_a_row_does_not_depend_on_the_others(ggml_type: int, isa: str) -> None:
    cols = columns(ggml_type, 160)
    weights = random_weights(ggml_type, 50, cols)
    x = activations(71, cols)
    alone = np.concatenate([ops.linear(weights.matrix, x[r : r + 1], isa=isa) for r in range(71)])
    for begin, end in [(0, 71), *((r, r + n) for n in range(2, 34) for r in (0, 5))]:
        np.testing.assert_array_equal(ops.linear(weights.matrix, x[begin:end], isa=isa), alone[begin:end])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("ggml_type", [Q4_1, Q8_0, Q2_K, Q6_K])
def test_wide_inputs_are_cut_into_smaller_blocks(ggml_type: int, isa: str) -> None:
    weights = random_weights(ggml_type, 16, 32768)
    x = activations(11, 32768)
    together = ops.linear(weights.matrix, x, isa=isa)
    expected, tolerance = product(weights, x, ggml_type)
    assert (np.abs(together - expected) <= tolerance).all()
    np.testing.assert_array_equal(ops.linear(weights.matrix, x[10:], isa=isa)[0], together[10])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("ggml_type", CONTAINERS)
def test_strips_are_computed_apart(ggml_type: int, isa: str) -> None:
    cols = columns(ggml_type, 64)
    weights = random_weights(ggml_type, 45, cols)  # the last strip has 13 outputs
    x, before = activations(7, cols), activations(7, 45, seed=1)
    whole = ops.linear(weights.matrix, x, isa=isa)
    for begin, end in [(0, 1), (1, 3), (2, 3), (1, 1)]:
        part = ops.linear(weights.matrix, x, add=before, strips=(begin, end), isa=isa)
        inside = np.s_[:, 16 * begin : min(16 * end, 45)]
        expected = before.copy()
        expected[inside] += whole[inside]
        np.testing.assert_array_equal(part, expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("ggml_type", CONTAINERS)
def test_bias_scale_and_addition_come_in_this_order(ggml_type: int, isa: str) -> None:
    cols = columns(ggml_type, 64)
    weights = random_weights(ggml_type, 45, cols)
    x, bias, before = activations(7, cols), activations(1, 45, seed=1)[0], activations(7, 45, seed=2)
    y = ops.linear(weights.matrix, x, isa=isa)
    got = ops.linear(weights.matrix, x, bias=bias, scale=0.3, add=before, isa=isa)
    np.testing.assert_array_equal(got, before + (y + bias) * np.float32(0.3))


@pytest.mark.parametrize("gate_type", CONTAINERS)
@pytest.mark.parametrize("up_type", [Q4_0, Q4_1, Q8_0, Q6_K, 30])
def test_gated_is_silu_of_one_times_the_other(gate_type: int, up_type: int) -> None:
    gate, up = (random_weights(t, 45, 256, seed=s).matrix for s, t in enumerate((gate_type, up_type)))
    x = activations(9, 256, size=5)
    g, u = (ops.linear(m, x).astype(np.float64) for m in (gate, up))
    expected = g / (1 + np.exp(-np.clip(g, -700, None))) * u
    results = [ops.gated(gate, up, x, isa=isa) for isa in ISAS]
    np.testing.assert_allclose(results[0], expected, rtol=2e-6, atol=1e-24)  # the exponential has an end
    for isa, result in zip(ISAS, results, strict=True):
        np.testing.assert_array_equal(result, results[0])
        np.testing.assert_array_equal(ops.gated(gate, up, x[4:5], isa=isa)[0], results[0][4])
        part = ops.gated(gate, up, x, strips=(1, 3), isa=isa)
        np.testing.assert_array_equal(part[:, 16:], results[0][:, 16:])
        assert not part[:, :16].any()


@pytest.mark.parametrize("isa", ISAS)
def test_a_gate_of_any_size_stays_a_number(isa: str) -> None:
    """silu(x) for |x| where exp(−x) overflows: 0 on one side, x on the other."""
    raw = np.eye(32, dtype=np.float32)
    one = ops.Matrix(kernels.pack_matrix(raw.view(np.uint8).reshape(-1), 0, 32, 32)[3], "f32", 32, 32)
    x = np.ones((1, 32), np.float32)
    x[0, :6] = [-1e30, -500, -89, 89, 500, 1e18]
    y = ops.gated(one, one, x, isa=isa)[0]
    np.testing.assert_allclose(y[1:3], 0, atol=1e-30)
    np.testing.assert_allclose(y[3:6], x[0, 3:6].astype(np.float64) ** 2, rtol=1e-6)
    assert np.isfinite(y[1:]).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("ggml_type", CONTAINERS)
def test_a_value_that_is_no_number_spoils_its_row_and_no_other(ggml_type: int, bad: float, isa: str) -> None:
    cols = columns(ggml_type, 64)
    weights = random_weights(ggml_type, 20, cols)
    x = activations(9, cols)
    clean = ops.linear(weights.matrix, x, isa=isa)
    x[4, 40] = bad
    y = ops.linear(weights.matrix, x, isa=isa)
    assert not np.isfinite(y[4]).any()
    np.testing.assert_array_equal(np.delete(y, 4, 0), np.delete(clean, 4, 0))


def test_arguments_are_checked_and_never_converted() -> None:
    matrix = random_weights(Q4_1, 32, 64).matrix
    x = activations(3, 64)
    wrong: list[Any] = [x.astype(np.float64), x[:, ::2], x[0], x.tolist()]
    for argument in wrong:
        with pytest.raises(TypeError):
            ops.linear(matrix, argument)
    for message, call in [
        ("as many columns", lambda: ops.linear(matrix, x[:, :32].copy())),
        ("as many values", lambda: ops.linear(matrix, x, bias=np.zeros(31, np.float32))),
        ("the shape of the result", lambda: ops.linear(matrix, x, add=x)),
        ("strips: out of range", lambda: ops.linear(matrix, x, strips=(0, 3))),
        ("multiple of 32", lambda: ops.quantize(x[:, :40].copy())),
        ("row 32: out of range", lambda: ops.dequantize_row(matrix, 32)),
        ("instruction set 'avx9'", lambda: ops.linear(matrix, x, isa="avx9")),
    ]:
        with pytest.raises(ValueError, match=message):
            call()  # type: ignore[no-untyped-call]
