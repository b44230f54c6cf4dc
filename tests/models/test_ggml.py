"""The type table against gguf's own."""

from __future__ import annotations

import gguf
import pytest

from octavo.models.ggml import FLOATS, TYPES, WEIGHTS

INTERMEDIATE = {"Q8_1", "Q8_K"}
"""Types of activations; no file holds them."""


def test_every_type_is_as_gguf_has_it() -> None:
    ours = {(kind.id, kind.name, kind.block, kind.block_bytes) for kind in TYPES.values()}
    theirs = {
        (kind.value, kind.name, *gguf.GGML_QUANT_SIZES[kind])
        for kind in gguf.GGMLQuantizationType
        if kind.name not in INTERMEDIATE
    }
    assert ours == theirs


def test_roles() -> None:
    assert {TYPES[kind].name for kind in FLOATS} == {"F32", "F16", "BF16"}
    assert {TYPES[kind].name for kind in set(TYPES) - WEIGHTS} == {"I8", "I16", "I32", "I64", "F64"}


@pytest.mark.parametrize(("name", "nbytes"), [("F32", 1024), ("Q4_1", 160), ("Q6_K", 210)])
def test_row_bytes(name: str, nbytes: int) -> None:
    kind = next(kind for kind in TYPES.values() if kind.name == name)
    assert kind.row_bytes(256) == nbytes
