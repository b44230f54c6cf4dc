"""What bytes each token id stands for. Knows no tokenization and no model; imports no tokenizer library.

The engine needs token bytes inside the step (stop strings, grammars), so the file loads in a few
milliseconds: one blob with offsets, sliced once.
"""

from __future__ import annotations

import re
import struct
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from operator import le
from pathlib import Path
from typing import Any

from octavo.errors import ModelError

__all__ = ["SPACE", "TokenType", "Vocabulary", "byte_alphabet", "token_texts", "token_types"]

SPACE = "\u2581"
"""What SentencePiece writes for a space."""

_MAGIC = b"OCTVOC1\0"
_HEADER = struct.Struct("<8sIIQ")  # magic, tokens, special tokens, bytes of the blob
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`: SentencePiece's types, which GGUF uses for every tokenizer."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


SPECIAL_TYPES = (TokenType.UNKNOWN, TokenType.CONTROL)


class Vocabulary:
    """An immutable table, token id → bytes.

    `pieces[i]` is what token i adds to a text; a control token has its literal name (`b"<|im_end|>"`).
    `special` holds the ids of control tokens (and of the unknown token); user-defined tokens are ordinary
    text. Joined pieces are not UTF-8 at every cut: a character may be split over tokens (see `text/stream`).
    """

    __slots__ = ("pieces", "special")

    pieces: tuple[bytes, ...]
    special: frozenset[int]

    def __init__(self, pieces: Iterable[bytes], special: Iterable[int] = ()) -> None:
        self.pieces = tuple(pieces)
        self.special = frozenset(special)

    @property
    def size(self) -> int:
        """How many ids have bytes. A model may have more rows of logits (padding): those ids are b""."""
        return len(self.pieces)

    def bytes_of(self, token: int, skip_special: bool) -> bytes:
        """The bytes of one id; b"" for a skipped control token and for an id outside the table."""
        if not 0 <= token < len(self.pieces) or (skip_special and token in self.special):
            return b""
        return self.pieces[token]

    def showing(self, tokens: Iterable[int]) -> Vocabulary:
        """The same, but that these control tokens are ordinary text."""
        shown = self.special.intersection(tokens)
        if not shown:
            return self
        other = Vocabulary((), self.special - shown)
        other.pieces = self.pieces
        return other

    def join(self, tokens: Iterable[int], skip_special: bool = True) -> bytes:
        """The bytes of a run of ids."""
        return b"".join([self.bytes_of(token, skip_special) for token in tokens])

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Vocabulary:
        """Undo the writing of `tokenizer.ggml.tokens`. Raises ModelError for missing or odd fields."""
        texts, types = token_texts(metadata), token_types(metadata)
        byte_level = metadata.get("tokenizer.ggml.model") == "gpt2"
        alphabet = byte_alphabet() if byte_level else {}
        pieces = []
        for text, kind in zip(texts, types, strict=True):
            if kind in SPECIAL_TYPES or (byte_level and kind == TokenType.USER_DEFINED):
                pieces.append(text.encode(errors="surrogateescape"))
            elif byte_level:
                pieces.append(_bytes_of_level(text, alphabet))
            elif kind == TokenType.BYTE and (match := _BYTE_TOKEN.fullmatch(text)):
                pieces.append(bytes([int(match[1], 16)]))
            else:
                pieces.append(text.replace(SPACE, " ").encode(errors="surrogateescape"))
        return cls(pieces, (i for i, kind in enumerate(types) if kind in SPECIAL_TYPES))

    def save(self, path: str | Path) -> None:
        """Write the table: header, special ids (u32), offsets (u32, size + 1), blob; all little-endian."""
        blob = b"".join(self.pieces)
        offsets, end = array("I", [0]), 0
        for piece in self.pieces:
            end += len(piece)
            offsets.append(end)
        special = array("I", sorted(self.special))
        head = _HEADER.pack(_MAGIC, len(self.pieces), len(special), len(blob))
        Path(path).write_bytes(head + _little(special).tobytes() + _little(offsets).tobytes() + blob)

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """Read what `save` wrote. Raises ModelError when the file is missing or damaged."""
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise ModelError(f"The vocabulary {path} cannot be read ({error.strerror}).") from error
        damaged = ModelError(
            f"The vocabulary {path} is damaged; delete its folder and the model is converted anew."
        )
        if len(data) < _HEADER.size:
            raise damaged
        magic, size, special_size, blob_bytes = _HEADER.unpack_from(data)
        offsets_at = _HEADER.size + 4 * special_size
        blob_at = offsets_at + 4 * (size + 1)
        if magic != _MAGIC or len(data) != blob_at + blob_bytes:
            raise damaged
        special, offsets = array("I"), array("I")
        special.frombytes(data[_HEADER.size : offsets_at])
        offsets.frombytes(data[offsets_at:blob_at])
        blob = data[blob_at:]
        offsets = _little(offsets)
        starts, ends = offsets[:-1], offsets[1:]
        if offsets[0] != 0 or offsets[-1] != blob_bytes or not all(map(le, starts, ends)):
            raise damaged
        special = _little(special)
        if max(special, default=0) >= max(size, 1):
            raise damaged
        return cls([blob[start:end] for start, end in zip(starts, ends, strict=True)], special)


def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable character for every byte (Radford et al. 2019), inverted: character → byte.

    Printable Latin-1 bytes stand for themselves; the other 68, in order, for U+0100 and on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + n): b for n, b in enumerate(hidden)}


def token_texts(metadata: Mapping[str, Any]) -> list[str]:
    """`tokenizer.ggml.tokens` as strings (bytes that are no UTF-8 become surrogate escapes)."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    if tokens is None or len(tokens) == 0:
        raise ModelError("The model file has no tokens (tokenizer.ggml.tokens); it cannot be used for text.")
    return [t.decode(errors="surrogateescape") if isinstance(t, bytes) else str(t) for t in tokens]


def token_types(metadata: Mapping[str, Any]) -> list[int]:
    """`tokenizer.ggml.token_type`, one for each token; all NORMAL where the file has none."""
    size = len(metadata["tokenizer.ggml.tokens"])
    types: Sequence[int] | None = metadata.get("tokenizer.ggml.token_type")
    if types is None:
        return [int(TokenType.NORMAL)] * size
    if len(types) != size:
        raise ModelError(
            f"The model file has {size} tokens but {len(types)} token types (tokenizer.ggml.token_type); "
            "it is damaged, fetch it again."
        )
    return [int(t) for t in types]


def _bytes_of_level(text: str, alphabet: dict[str, int]) -> bytes:
    """A byte-level token's bytes; characters outside the alphabet (hand-made files) stand for themselves."""
    try:
        return bytes([alphabet[c] for c in text])
    except KeyError:
        return b"".join(
            bytes([alphabet[c]]) if c in alphabet else c.encode(errors="surrogateescape") for c in text
        )


def _little(numbers: array[int]) -> array[int]:
    """The same numbers in little-endian memory order (its own inverse)."""
    if sys.byteorder == "big":
        numbers = array("I", numbers)
        numbers.byteswap()
    return numbers
