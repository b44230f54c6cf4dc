"""SentencePiece's normalization: what happens to a text before its pieces are looked up. Knows no pieces.

Follows the `normalizer` of Kudo & Richardson 2018 (arXiv:1808.06226): a table of replacements (the
"precompiled character map", a Darts double array), collapsed spaces, a space before the text, "▁" for spaces.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable

from octavo.errors import ModelError
from octavo.text.vocabulary import SPACE

__all__ = ["CharacterMap", "Normalizer"]

_SPACES = re.compile(" +")


class CharacterMap:
    """Longest-match replacement of byte sequences, as compiled by SentencePiece.

    The blob: u32 size of the array; the array (u32 units of a double-array trie, Yata 2008, `darts-clone`);
    NUL-terminated replacements, which the trie's values point into. Raises ModelError for a damaged blob.
    """

    def __init__(self, blob: bytes) -> None:
        size = struct.unpack_from("<I", blob)[0] if len(blob) >= 4 else 0
        if size == 0 or size % 4 or 4 + size >= len(blob):
            raise ModelError(
                "The tokenizer's character map (precompiled_charsmap) is damaged; fetch the model again."
            )
        self._units = struct.unpack_from(f"<{size // 4}I", blob, 4)
        self._replacements = blob[4 + size :]
        self._starts: dict[str, bool] = {}

    def apply(self, text: str) -> str:
        """The text with every longest match replaced, scanned from the left."""
        if not any(map(self._may_start, set(text))):
            return text
        out: list[str] = []
        at = 0
        while at < len(text):
            length, replacement = self._match(text, at) if self._may_start(text[at]) else (0, "")
            out.append(replacement if length else text[at])
            at += length or 1
        return "".join(out)

    def _may_start(self, character: str) -> bool:
        """Whether any key begins with this character (remembered: texts use few characters)."""
        known = self._starts.get(character)
        if known is None:
            known = self._starts[character] = self._walk(character.encode()) is not None
        return known

    def _walk(self, key: bytes) -> int | None:
        """The trie node reached by `key`, or None."""
        node = self._offset(0, self._units[0])
        for byte in key:
            step = self._step(node, byte)
            if step is None:
                return None
            node = step[0]
        return node

    def _match(self, text: str, at: int) -> tuple[int, str]:
        """(characters, replacement) of the longest key at `at`; (0, "") when none matches."""
        best = (0, "")
        node = self._offset(0, self._units[0])
        for end in range(at, len(text)):
            has_value = False
            for byte in text[end].encode():
                step = self._step(node, byte)
                if step is None:
                    return best
                node, has_value = step
            if has_value and node < len(self._units):
                start = self._units[node] & 0x7FFF_FFFF
                stop = self._replacements.find(b"\0", start)
                if stop >= 0:
                    best = (end + 1 - at, self._replacements[start:stop].decode(errors="replace"))
        return best

    def _step(self, node: int, byte: int) -> tuple[int, bool] | None:
        """One edge of the trie: (the child's offset base, whether a key ends there), or None."""
        at = node ^ byte
        if at >= len(self._units):
            return None
        unit = self._units[at]
        if unit & 0x8000_00FF != byte:
            return None
        return self._offset(at, unit), bool(unit >> 8 & 1)

    @staticmethod
    def _offset(at: int, unit: int) -> int:
        return at ^ ((unit >> 10) << ((unit & (1 << 9)) >> 6))


class Normalizer:
    """Text → normalized text, in which no plain space is left.

    `add_prefix`: a space before the text. `collapse`: runs of spaces become one, none at either end.
    `protected`: user-defined pieces, which neither replacement nor collapsing takes apart.
    """

    def __init__(
        self,
        *,
        add_prefix: bool,
        collapse: bool,
        character_map: bytes | None = None,
        protected: Iterable[str] = (),
    ) -> None:
        self.add_prefix = add_prefix
        self._collapse = collapse
        self._map = CharacterMap(character_map) if character_map else None
        literals = sorted(filter(None, protected), key=len, reverse=True)
        self._protected = re.compile("(" + "|".join(map(re.escape, literals)) + ")") if literals else None

    def __call__(self, text: str) -> str:
        parts = self._protected.split(text) if self._protected else [text]
        if self._map is not None:
            parts[::2] = map(self._map.apply, parts[::2])
        text = _collapsed(parts) if self._collapse else "".join(parts)
        if not text:
            return ""
        if self.add_prefix:
            text = " " + text
        text = text.replace(" ", SPACE)
        return text.rstrip(SPACE) if self._collapse else text


def _collapsed(parts: list[str]) -> str:
    """The joined parts with single spaces, none in front. Protected parts (the odd ones) keep their own."""
    out: list[str] = []
    after_space = True
    for n, part in enumerate(parts):
        if n % 2 == 0:
            part = _SPACES.sub(" ", part)
        if after_space:
            part = part.lstrip(" ")
        if part:
            after_space = part.endswith(" ")
            out.append(part)
    return "".join(out)
