"""Random packed matrices and what they must hold, for the tests of products. Knows no kernel but the packing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

kernels = pytest.importorskip("octavo._kernels", reason="the kernels are not built")

F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 = 0, 1, 2, 3, 6, 7, 8
Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, BF16 = 10, 11, 12, 13, 14, 20, 30


class Layout(NamedTuple):
    """A block of a quantised type, and where its fp16 scale and minimum are."""

    block: int
    block_bytes: int
    halves: tuple[int, ...]


LAYOUTS = {
    Q4_0: Layout(32, 18, (0,)),
    Q4_1: Layout(32, 20, (0, 2)),
    Q5_0: Layout(32, 22, (0,)),
    Q5_1: Layout(32, 24, (0, 2)),
    Q8_0: Layout(32, 34, (0,)),
    Q2_K: Layout(256, 84, (80, 82)),
    Q3_K: Layout(256, 110, (108,)),
    Q4_K: Layout(256, 144, (0, 2)),
    Q5_K: Layout(256, 176, (0, 2)),
    Q6_K: Layout(256, 210, (208,)),
    IQ4_NL: Layout(32, 18, (0,)),
}
QUANTISED = list(LAYOUTS)
FORMATS = [*QUANTISED, F16, BF16, F32]
CONTAINERS = [Q4_0, Q4_1, Q8_0, Q5_1, Q4_K, Q5_K, Q2_K, Q3_K, Q6_K, BF16, F32]
"""One type for every kind of matrix that the kernels know."""


def columns(ggml_type: int, least: int) -> int:
    """The fewest columns that this type's blocks allow, from `least` on."""
    block = LAYOUTS[ggml_type].block if ggml_type in LAYOUTS else 1
    return -(-least // block) * block


@dataclass(frozen=True)
class Weights:
    """A tensor as a GGUF file has it, its values by gguf's own dequantisation, and the packed form."""

    raw: NDArray[np.uint8]
    values: NDArray[np.float32]  # [rows, cols]
    matrix: Any
    packed: NDArray[np.uint8]


def finite_halves(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.uint16]:
    """Any fp16 that is finite, denormals and both zeros too, as often small as large."""
    exponent = rng.integers(0, 31, shape, dtype=np.uint16)
    return (
        (rng.integers(0, 2, shape, dtype=np.uint16) << 15)  # type: ignore[return-value]
        | (exponent << 10)
        | rng.integers(0, 1024, shape, dtype=np.uint16)
    )


def random_raw(ggml_type: int, rows: int, cols: int, seed: int, *, wild: bool = False) -> NDArray[np.uint8]:
    """The bytes of a tensor. `wild`: scales of any finite size, else about those of a real model."""
    rng = np.random.default_rng(seed)
    if layout := LAYOUTS.get(ggml_type):
        blocks = rng.integers(0, 256, (rows, cols // layout.block, layout.block_bytes), dtype=np.uint8)
        for at in layout.halves:
            plain = rng.normal(0, 0.02, blocks.shape[:2]).astype(np.float16).view(np.uint16)
            halves = finite_halves(rng, blocks.shape[:2]) if wild else plain
            blocks[..., at : at + 2] = halves[..., None].view(np.uint8)
        return blocks.reshape(-1)
    values = rng.normal(0, 0.02, (rows, cols)).astype(np.float32)
    if ggml_type == F16:
        return (
            (finite_halves(rng, (rows, cols)) if wild else values.astype(np.float16))
            .view(np.uint8)
            .reshape(-1)
        )
    if ggml_type == BF16:
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(-1)
    return values.view(np.uint8).reshape(-1)


def dequantised(raw: NDArray[np.uint8], ggml_type: int, rows: int, cols: int) -> NDArray[np.float32]:
    values: NDArray[np.float32]
    if ggml_type == F32:
        values = raw.view(np.float32)
    elif ggml_type == F16:
        values = raw.view(np.float16).astype(np.float32)
    elif ggml_type == BF16:
        values = (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        values = gguf.quants.dequantize(raw.reshape(rows, -1), gguf.GGMLQuantizationType(ggml_type))
    return values.reshape(rows, cols)


def random_weights(ggml_type: int, rows: int, cols: int, seed: int = 0, *, wild: bool = False) -> Weights:
    raw = random_raw(ggml_type, rows, cols, seed, wild=wild)
    container, zero_point, has_min, packed = kernels.pack_matrix(raw, ggml_type, rows, cols)
    matrix = kernels.ops.Matrix(packed, container, rows, cols, zero_point, has_min)
    return Weights(raw, dequantised(raw, ggml_type, rows, cols), matrix, packed)
