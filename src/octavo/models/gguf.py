"""Reads GGUF files through a memory map, distrusting every number in them. Knows no architecture.

The format (docs/gguf.md in ggml's repository), little-endian: magic, version, tensor count, key count; the
keys (name, value type, value); the tensor table (name, dimensions, type, offset); padding; the tensors.
100,000 strings, a vocabulary and its merges, are read in about 30 ms and 16 MB.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from octavo.errors import ModelError
from octavo.models.ggml import TYPES, GGMLType

__all__ = ["GGUFFile", "TensorInfo"]

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_NUMBERS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<B"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
"""Value types that are numbers. 7 is bool, 8 string, 9 array."""
_BOOL, _STRING, _ARRAY = 7, 8, 9

_MAX_DIMENSIONS = 4
_MAX_NESTING = 4
"""Arrays inside arrays; no known file has two levels."""
_MAX_NAME = 1000
"""Characters of a key or a tensor's name; longer ones do not occur and would drown the message."""


class TensorInfo(NamedTuple):
    """Where a tensor lies and what it is."""

    name: str
    shape: tuple[int, ...]
    """Outermost first, as in NumPy: a linear weight is (outputs, inputs)."""
    type: GGMLType
    offset: int
    """Bytes from the beginning of the file."""
    nbytes: int


class GGUFFile:
    """An open GGUF file, version 2 or 3.

    `metadata` holds every key in file order, as bool, int, float, str, or a list of them. `tensors` is the
    tensor table in file order; every entry lies inside the file and overlaps no other. Raises ModelError, one
    sentence with the path, the value and the reason, for anything else.

    The map stays open as long as an array from `data` lives; changing the file meanwhile is undefined.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, 2)
                if size < 24:
                    raise ModelError(
                        f"'{self.path}' is no GGUF file: it has {size} bytes, a header alone has 24."
                    )
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelError(f"'{self.path}' cannot be read: {error.strerror or error}.") from error
        self._size = size
        self._at = 0
        self._what = "the header"
        try:
            self._read()
        except struct.error as error:
            raise self._error(
                f"the file ends after {size} bytes, inside {self._what}; it may be truncated"
            ) from error

    def data(self, name: str) -> NDArray[np.uint8]:
        """The raw bytes of a tensor, [nbytes], read-only, not copied. Raises KeyError for an unknown name."""
        tensor = self.tensors[name]
        return np.frombuffer(self._map, np.uint8, tensor.nbytes, tensor.offset)

    # The parts below read at self._at and move it. struct raises when fewer bytes are left than it needs.

    def _read(self) -> None:
        magic = self._map[:4]
        if magic != b"GGUF":
            raise self._error(f"it begins with {magic!r}, a GGUF file begins with b'GGUF'")
        self._at = 4
        self.version = self._u32()
        if self.version not in (2, 3):
            swapped = int.from_bytes(self.version.to_bytes(4, "little"), "big")
            hint = "a big-endian file" if swapped in (2, 3) else "Octavo reads 2 and 3"
            raise self._error(f"its format version is {self.version} ({hint})")
        tensor_count, key_count = self._u64(), self._u64()
        self._limit(tensor_count, 24, "tensors")
        self._limit(key_count, 13, "metadata keys")

        self.metadata: dict[str, Any] = {}
        for index in range(key_count):
            self._what = f"metadata key {index} of {key_count}"
            key = self._name()
            self._what = f"metadata key {key!r}"
            if key in self.metadata:
                self._fail("the key is there twice")
            self.metadata[key] = self._value(self._u32(), 0)

        self.alignment = self.metadata.get("general.alignment", 32)
        if not _is_power_of_two(self.alignment):
            raise self._error(f"general.alignment is {self.alignment!r}, it must be a power of two")
        table = [self._tensor_entry(index, tensor_count) for index in range(tensor_count)]
        start = -(-self._at // self.alignment) * self.alignment
        self.tensors: dict[str, TensorInfo] = {}
        for tensor in table:
            self._what = f"tensor {tensor.name!r}"
            if tensor.name in self.tensors:
                self._fail("the name is there twice")
            if tensor.offset % self.alignment:
                self._fail(f"its offset {tensor.offset} is no multiple of the alignment {self.alignment}")
            end = start + tensor.offset + tensor.nbytes
            if end > self._size:
                self._fail(f"it ends at byte {end}, the file at {self._size}; it may be truncated")
            self.tensors[tensor.name] = tensor._replace(offset=start + tensor.offset)
        self._refuse_overlaps()

    def _tensor_entry(self, index: int, count: int) -> TensorInfo:
        """A row of the tensor table; its offset still counts from the beginning of the data."""
        self._what = f"entry {index} of {count} in the tensor table"
        name = self._name()
        self._what = f"tensor {name!r}"
        dimensions = self._u32()
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            self._fail(f"it has {dimensions} dimensions, 1 to {_MAX_DIMENSIONS} are possible")
        shape = tuple(self._u64() for _ in range(dimensions))[::-1]
        type_id, offset = self._u32(), self._u64()
        kind = TYPES.get(type_id)
        if kind is None:
            self._fail(f"its ggml type {type_id} is not known")
        if 0 in shape:
            self._fail(f"its shape {shape} has a dimension of 0")
        if shape[-1] % kind.block:
            self._fail(f"its rows have {shape[-1]} values, {kind.name} needs a multiple of {kind.block}")
        nbytes = kind.row_bytes(shape[-1])
        for rows in shape[:-1]:
            nbytes *= rows
        return TensorInfo(name, shape, kind, offset, nbytes)

    def _refuse_overlaps(self) -> None:
        """Tensors that share bytes are a damaged table: nothing that writes GGUF makes them."""
        end, previous = 0, ""
        for tensor in sorted(self.tensors.values(), key=lambda tensor: tensor.offset):
            if tensor.offset < end:
                self._what = f"tensor {tensor.name!r}"
                self._fail(f"it begins at byte {tensor.offset}, inside tensor {previous!r}")
            end, previous = tensor.offset + tensor.nbytes, tensor.name

    def _value(self, kind: int, depth: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(depth + 1)
        number = _NUMBERS.get(kind)
        if number is None:
            self._fail(f"its value type {kind} is not known")
        (value,) = number.unpack_from(self._map, self._at)
        self._at += number.size
        if kind == _BOOL:
            if value > 1:
                self._fail(f"its bool is {value}, it must be 0 or 1")
            return bool(value)
        return value

    def _array(self, depth: int) -> list[Any]:
        kind, count = self._u32(), self._u64()
        if depth > _MAX_NESTING:
            self._fail(f"its arrays are nested more than {_MAX_NESTING} deep")
        if kind == _STRING:
            self._limit(count, 8, "strings")
            return self._strings(count)
        if kind == _ARRAY:
            self._limit(count, 12, "arrays")
            return [self._array(depth + 1) for _ in range(count)]
        number = _NUMBERS.get(kind)
        if number is None:
            self._fail(f"its elements' type {kind} is not known")
        self._limit(count, number.size, "elements")
        values = (
            np.frombuffer(self._map, number.format, count, self._at) if count else np.empty(0, number.format)
        )
        self._at += count * number.size
        if kind == _BOOL:
            if values.max(initial=0) > 1:
                self._fail(f"one of its bools is {values.max()}, it must be 0 or 1")
            values = values.astype(bool)
        plain: list[Any] = values.tolist()
        return plain

    def _strings(self, count: int) -> list[str]:
        """`count` strings. Opening a file spends its time here, so the loop calls nothing of ours."""
        data, at, size = self._map, self._at, self._size
        unpack_from = _U64.unpack_from
        strings: list[str] = []
        append = strings.append
        try:
            for _ in range(count):
                (length,) = unpack_from(data, at)
                at += 8
                end = at + length
                if end > size:
                    self._fail(f"string {len(strings)} has {length} bytes, {size - at} are left in the file")
                append(data[at:end].decode())
                at = end
        except UnicodeDecodeError as error:
            raise self._error(f"{self._what}: string {len(strings)} is not UTF-8 ({error.reason})") from error
        self._at = at
        return strings

    def _string(self) -> str:
        return self._strings(1)[0]

    def _name(self) -> str:
        name = self._string()
        if len(name) > _MAX_NAME:
            self._fail(f"its name has {len(name)} characters, {_MAX_NAME} are allowed")
        return name

    def _u32(self) -> int:
        (value,) = _U32.unpack_from(self._map, self._at)
        self._at += 4
        return int(value)

    def _u64(self) -> int:
        (value,) = _U64.unpack_from(self._map, self._at)
        self._at += 8
        return int(value)

    def _limit(self, count: int, least_bytes: int, noun: str) -> None:
        """Refuse a count before anything is allocated for it."""
        left = self._size - self._at
        if count * least_bytes > left:
            self._fail(
                f"{count} {noun} need at least {count * least_bytes} bytes, {left} are left in the file"
            )

    def _fail(self, reason: str) -> NoReturn:
        raise self._error(f"{self._what}: {reason}")

    def _error(self, reason: str) -> ModelError:
        return ModelError(f"'{self.path}' is not a usable GGUF file: {reason}.")


def _is_power_of_two(value: object) -> bool:
    return type(value) is int and value > 0 and value & (value - 1) == 0
