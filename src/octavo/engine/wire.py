"""Frames on a byte stream: a 4-byte little-endian length, then msgpack. Knows no socket and no message."""

from __future__ import annotations

from struct import Struct
from typing import Generic, Protocol, TypeVar

import msgspec

__all__ = ["MAX_FRAME_BYTES", "FrameReader", "WireError", "frame"]

MAX_FRAME_BYTES = 1 << 30
"""A longer frame is damage, not a message: the largest real one is a prompt of some megabytes."""

_LENGTH = Struct("<I")
_encoder = msgspec.msgpack.Encoder()

T = TypeVar("T")
Read_co = TypeVar("Read_co", covariant=True)


class WireError(Exception):
    """The bytes are no frame of ours: the other side is damaged, or is not an engine."""


def frame(message: msgspec.Struct) -> bytearray:
    """`message` as one frame."""
    buffer = bytearray(_LENGTH.size)
    _encoder.encode_into(message, buffer, _LENGTH.size)
    _LENGTH.pack_into(buffer, 0, len(buffer) - _LENGTH.size)
    return buffer


class Decoder(Protocol[Read_co]):
    """Bytes to a message. Raises msgspec.DecodeError."""

    def decode(self, data: memoryview, /) -> Read_co: ...


class FrameReader(Generic[T]):
    """Cuts a byte stream into messages of the decoder's type; an unfinished frame waits for its rest."""

    def __init__(self, decoder: Decoder[T]) -> None:
        self._decoder = decoder
        self._buffer = bytearray()

    def feed(self, data: bytes | bytearray) -> list[T]:
        """Take `data` in; the messages that it completes. Raises WireError."""
        self._buffer += data
        messages: list[T] = []
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._buffer, start)
            if size > MAX_FRAME_BYTES:
                raise WireError(f"A frame announces {size} bytes; at most {MAX_FRAME_BYTES} are allowed.")
            body, end = start + _LENGTH.size, start + _LENGTH.size + size
            if end > len(self._buffer):
                break
            with memoryview(self._buffer) as whole, whole[body:end] as view:
                try:
                    messages.append(self._decoder.decode(view))
                except (msgspec.DecodeError, RecursionError) as error:
                    raise WireError(f"A frame of {size} bytes is no message: {error}.") from error
            start = end
        del self._buffer[:start]
        return messages
