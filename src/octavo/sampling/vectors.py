"""What becomes of a prompt's pooled vector: cut to fewer numbers, brought to length 1. Knows no model and no wire."""

from __future__ import annotations

import base64
import math
import struct

from octavo.errors import InvalidParameter

__all__ = ["as_base64", "check_dimensions", "finished"]


def check_dimensions(dimensions: int | None, width: int) -> None:
    """Raise InvalidParameter for a number of dimensions that a vector of `width` cannot be cut to."""
    if dimensions is not None and not 1 <= dimensions <= width:
        raise InvalidParameter(
            f"dimensions is {dimensions}; this model's vectors have {width} numbers, and 1 to {width} of them can be "
            "asked for.",
            "dimensions",
        )


def finished(vector: bytes, dimensions: int | None = None, *, normalize: bool = True) -> list[float]:
    """A vector as a backend gives it (float32, little-endian) as numbers that float32 holds, the first `dimensions` of
    them (Matryoshka, Kusupati et al. 2022, arXiv:2205.13147), then divided by their Euclidean length if `normalize`.
    One of length 0 stays as it is."""
    floats = struct.unpack(f"<{len(vector) // 4}f", vector)[:dimensions]
    length = math.hypot(*floats) if normalize else 1.0
    if length in (0.0, 1.0):
        return list(floats)
    packed = struct.pack(f"<{len(floats)}f", *(value / length for value in floats))
    return list(struct.unpack(f"<{len(floats)}f", packed))


def as_base64(vector: list[float]) -> str:
    """Of float32, little-endian: what OpenAI's clients ask for when they are not told otherwise."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")
