"""The tensor types of the ggml library: ids, names and block sizes. Knows no file and no arithmetic.

From ggml's public header; a type stores `block` values in `block_bytes` bytes, blocks never cross a row.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["FLOATS", "TYPES", "WEIGHTS", "GGMLType"]


class GGMLType(NamedTuple):
    """One way to store numbers."""

    id: int
    name: str
    block: int
    """Values in a block; 1 for plain numbers."""
    block_bytes: int

    def row_bytes(self, cols: int) -> int:
        """Bytes of a row of `cols` values, a multiple of `block`."""
        return cols // self.block * self.block_bytes


TYPES: dict[int, GGMLType] = {
    kind.id: kind
    for kind in (
        GGMLType(0, "F32", 1, 4),
        GGMLType(1, "F16", 1, 2),
        GGMLType(2, "Q4_0", 32, 18),
        GGMLType(3, "Q4_1", 32, 20),
        GGMLType(6, "Q5_0", 32, 22),
        GGMLType(7, "Q5_1", 32, 24),
        GGMLType(8, "Q8_0", 32, 34),
        GGMLType(10, "Q2_K", 256, 84),
        GGMLType(11, "Q3_K", 256, 110),
        GGMLType(12, "Q4_K", 256, 144),
        GGMLType(13, "Q5_K", 256, 176),
        GGMLType(14, "Q6_K", 256, 210),
        GGMLType(16, "IQ2_XXS", 256, 66),
        GGMLType(17, "IQ2_XS", 256, 74),
        GGMLType(18, "IQ3_XXS", 256, 98),
        GGMLType(19, "IQ1_S", 256, 50),
        GGMLType(20, "IQ4_NL", 32, 18),
        GGMLType(21, "IQ3_S", 256, 110),
        GGMLType(22, "IQ2_S", 256, 82),
        GGMLType(23, "IQ4_XS", 256, 136),
        GGMLType(24, "I8", 1, 1),
        GGMLType(25, "I16", 1, 2),
        GGMLType(26, "I32", 1, 4),
        GGMLType(27, "I64", 1, 8),
        GGMLType(28, "F64", 1, 8),
        GGMLType(29, "IQ1_M", 256, 56),
        GGMLType(30, "BF16", 1, 2),
        GGMLType(34, "TQ1_0", 256, 54),
        GGMLType(35, "TQ2_0", 256, 66),
        GGMLType(39, "MXFP4", 32, 17),
        GGMLType(40, "NVFP4", 64, 36),
        GGMLType(41, "Q1_0", 128, 18),
    )
}
"""Every type that files use, by id; the gaps are removed types and those of intermediate results."""

FLOATS = frozenset({0, 1, 30})
"""F32, F16, BF16: what a vector (a norm's weight, a bias) may be stored as."""

WEIGHTS = frozenset(TYPES) - {24, 25, 26, 27, 28}
"""What a matrix may be stored as: everything but the plain integers and F64."""
