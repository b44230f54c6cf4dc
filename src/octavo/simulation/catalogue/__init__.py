"""What is known of accelerators and models: data files with a source for each row. Knows no step and no price."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Annotated, TypeVar

import msgspec

from octavo.errors import InvalidParameter

__all__ = ["Hardware", "Shape", "hardware", "hardware_names", "model", "model_names", "named"]

_Positive = Annotated[float, msgspec.Meta(gt=0)]
_Row = TypeVar("_Row")
_Count = Annotated[int, msgspec.Meta(ge=1)]


class Hardware(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One accelerator, as its maker describes it."""

    name: str
    bf16_tflops: _Positive
    """Dense, 10¹² operations a second; fp16 where there is no bf16."""
    int8_tops: _Positive
    fp8_tflops: _Positive | None = None
    fp4_tflops: _Positive | None = None
    memory_gb: _Positive
    bandwidth_gb_s: _Positive
    link_gb_s: Annotated[float, msgspec.Meta(ge=0)]
    """To its neighbours, one direction; 0: there is no other."""
    watts: _Positive
    idle_watts: _Positive
    """Loaded and doing nothing: no data sheet has it, and machines differ; a rough figure."""
    source: str
    as_of: str


class Shape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decoder's sizes."""

    layers: _Count
    hidden: _Count
    heads: _Count
    kv_heads: _Count
    head_dim: _Count
    parameters: _Count
    embedding: Annotated[int, msgspec.Meta(ge=0)]
    """Parameters that are looked up and not multiplied by."""
    vocabulary: _Count
    context: _Count
    source: str

    def kv_bytes_per_token(self, bits: float = 16) -> float:
        """K and V of all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * bits / 8


def hardware(name: str) -> Hardware:
    """Raises InvalidParameter for an unknown name, with those that are near."""
    return named(name, _hardware(), "hardware")


def model(name: str) -> Shape:
    """Raises InvalidParameter for an unknown name, with those that are near."""
    return named(name, _models(), "model")


def hardware_names() -> tuple[str, ...]:
    return tuple(_hardware())


def model_names() -> tuple[str, ...]:
    return tuple(_models())


@cache
def _hardware() -> dict[str, Hardware]:
    return msgspec.convert(_read("hardware.toml"), dict[str, Hardware])


@cache
def _models() -> dict[str, Shape]:
    return msgspec.convert(_read("models.toml"), dict[str, Shape])


def _read(name: str) -> dict[str, object]:
    return tomllib.loads((resources.files(__name__) / name).read_text(encoding="utf-8"))


def named(name: str, known: dict[str, _Row], what: str) -> _Row:
    """A row by its name. Raises InvalidParameter for an unknown one, with those that are near."""
    found = known.get(name.lower())
    if found is None:
        raise InvalidParameter(f"{what} {name!r} is unknown; {nearest(name, known)}")
    return found


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about a name that is not `known`: which was meant, or which there are."""
    near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"there are {', '.join(known)}."
