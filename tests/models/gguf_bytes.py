"""GGUF files byte by byte, for what no honest writer would write."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

__all__ = ["entry", "key", "string", "write_file"]

U32, U64 = struct.Struct("<I"), struct.Struct("<Q")


def string(text: str | bytes) -> bytes:
    """Length and bytes."""
    data = text.encode() if isinstance(text, str) else text
    return U64.pack(len(data)) + data


def key(name: str | bytes, kind: int, value: bytes) -> bytes:
    """A metadata key: name, value type, value."""
    return string(name) + U32.pack(kind) + value


def entry(name: str, dimensions: Sequence[int], kind: int, offset: int) -> bytes:
    """A row of the tensor table; dimensions innermost first."""
    sizes = b"".join(map(U64.pack, dimensions))
    return string(name) + U32.pack(len(dimensions)) + sizes + U32.pack(kind) + U64.pack(offset)


def write_file(
    path: Path,
    keys: Sequence[bytes] = (),
    entries: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    magic: bytes = b"GGUF",
    counts: tuple[int, int] | None = None,
    alignment: int = 32,
) -> Path:
    """Write the parts. `counts` replaces the true numbers of (entries, keys)."""
    tensor_count, key_count = counts or (len(entries), len(keys))
    head = magic + U32.pack(version) + U64.pack(tensor_count) + U64.pack(key_count)
    body = head + b"".join(keys) + b"".join(entries)
    padding = -len(body) % alignment
    path.write_bytes(body + bytes(padding) + data)
    return path
