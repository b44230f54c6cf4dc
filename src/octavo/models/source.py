"""What a compile function reads a model file through: typed keys, checked shapes. Knows no architecture.

Every miss is one ModelError with the file, the key or tensor, the value and what was expected.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import numpy as np

from octavo.errors import ModelError
from octavo.models.ggml import FLOATS, TYPES, WEIGHTS
from octavo.models.gguf import GGUFFile

__all__ = ["Source"]

_T = TypeVar("_T")
_REQUIRED: Any = object()
_LARGEST = 2**31 - 1
"""No size of a model is larger, and products of two still fit a 64-bit integer."""


class Source:
    """A GGUF file and the tensors that the compile function has asked for."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        self._used: set[str] = set()

    @property
    def stem(self) -> str:
        """The file's name without its ending."""
        return self._file.path.stem

    # Keys. Without a default, a missing key is an error.

    def text(self, key: str, default: str = _REQUIRED) -> str:
        """A string."""
        return str(self._typed(key, (str,), "a string", default))

    def maybe_text(self, key: str) -> str | None:
        """A string, or None when the key is absent."""
        return self.text(key) if key in self._file.metadata else None

    def flag(self, key: str, default: bool = _REQUIRED) -> bool:
        """A bool."""
        return bool(self._typed(key, (bool,), "a bool", default))

    def size(self, key: str, default: int = _REQUIRED) -> int:
        """An integer from 1."""
        return self._ranged(key, self._typed(key, (int,), "an integer", default), 1)

    def count(self, key: str, default: int = _REQUIRED) -> int:
        """An integer from 0."""
        return self._ranged(key, self._typed(key, (int,), "an integer", default), 0)

    def layer_size(self, key: str, layers: int, default: int = _REQUIRED) -> int:
        """A size that the format allows per layer; all layers must agree."""
        value = self._file.metadata.get(key)
        if not isinstance(value, list):
            return self.size(key, default)
        if len(value) != layers or len(set(map(str, value))) != 1 or type(value[0]) is not int:
            raise self.error(f"{key} is {_short(value)}, only one size for all {layers} layers is supported")
        return self._ranged(key, value[0], 1)

    def number(self, key: str, default: float = _REQUIRED) -> float:
        """A finite number above 0."""
        value = float(self._typed(key, (float, int), "a number", default))
        if not (math.isfinite(value) and value > 0):
            raise self.error(f"{key} is {value}, it must be finite and above 0")
        return value

    def token(self, key: str, vocab_size: int) -> int | None:
        """A token id, or None when the key is absent."""
        if key not in self._file.metadata:
            return None
        value = self.count(key)
        if value >= vocab_size:
            raise self.error(f"{key} is {value}, the vocabulary has ids 0 to {vocab_size - 1}")
        return value

    def array(self, key: str, kind: type[_T], length: int | None = None) -> list[_T] | None:
        """A list of `kind` (with `length` elements, if given), or None when the key is absent."""
        value = self._file.metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or (value and type(value[0]) is not kind):  # arrays are of one type
            raise self.error(f"{key} is {_short(value)}, it must be an array of {kind.__name__}")
        if length is not None and len(value) != length:
            raise self.error(f"{key} has {len(value)} elements, it must have {length}")
        return value

    # Tensors. Each returns the name, for the program.

    def matrix(self, name: str, rows: int, cols: int) -> str:
        """A weight of [rows, cols], in any float or block type."""
        return self._tensor(name, (rows, cols), WEIGHTS)

    def vector(self, name: str, size: int) -> str:
        """A weight of [size], in a float type."""
        return self._tensor(name, (size,), FLOATS)

    def maybe_vector(self, name: str, size: int) -> str | None:
        """A vector that may be absent."""
        return self.vector(name, size) if name in self._file.tensors else None

    def has(self, name: str) -> bool:
        """Whether the file has this tensor."""
        return name in self._file.tensors

    def floats(self, name: str, size: int) -> tuple[float, ...]:
        """The values of an F32 vector, each finite and above 0."""
        self._tensor(name, (size,), frozenset({0}))
        values = self._file.data(name).view(np.float32)
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise self.error(f"tensor {name!r} holds values that are not finite and above 0")
        return tuple(values.tolist())

    def refuse_unused(self) -> None:
        """Every tensor must have been asked for: one that was not would be computed without, wrongly."""
        unused = [name for name in self._file.tensors if name not in self._used]
        if unused:
            more = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
            raise self.error(
                f"tensor {unused[0]!r}{more} has no place in this architecture as Octavo knows it"
            )

    def error(self, reason: str) -> ModelError:
        """The error to raise: the file and `reason` in one sentence."""
        return ModelError(f"The model '{self._file.path}' is not usable: {reason}.")

    def _tensor(self, name: str, shape: tuple[int, ...], types: frozenset[int]) -> str:
        tensor = self._file.tensors.get(name)
        if tensor is None:
            raise self.error(f"tensor {name!r} is missing")
        if tensor.shape != shape:
            raise self.error(f"tensor {name!r} has shape {tensor.shape}, the hyperparameters ask for {shape}")
        if tensor.type.id not in types:
            names = ", ".join(TYPES[kind].name for kind in sorted(types))
            raise self.error(f"tensor {name!r} has type {tensor.type.name}, it must be one of {names}")
        self._used.add(name)
        return name

    def _typed(self, key: str, types: tuple[type, ...], noun: str, default: Any) -> Any:
        value = self._file.metadata.get(key, default)
        if value is _REQUIRED:
            raise self.error(f"its metadata has no {key}")
        if type(value) not in types:  # type(), since a bool is an int to isinstance
            raise self.error(f"{key} is {_short(value)}, it must be {noun}")
        return value

    def _ranged(self, key: str, value: int, least: int) -> int:
        if not least <= value <= _LARGEST:
            raise self.error(f"{key} is {value}, it must be {least} to {_LARGEST}")
        return value


def _short(value: object) -> str:
    if isinstance(value, list):
        value = value[:9]  # before repr: a vocabulary has 100,000 elements
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
