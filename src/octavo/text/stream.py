"""Tokens as they come → text that can be shown. Knows bytes and UTF-8, not why something is held back."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from octavo.text.vocabulary import Vocabulary

__all__ = ["TextStream"]


class TextStream:
    """Joins the bytes of tokens into valid UTF-8, piece by piece.

    All pushes and the finish joined are `bytes.decode(errors="replace")` of the whole, less what `finish`
    cuts, however the tokens were grouped; a character split over tokens comes whole, once. At most three bytes
    of a character and the held bytes are kept, whatever the model emits.

    `drop_leading_space`: the first space is the tokenizer's own (SentencePiece's prefix), not the text's.
    """

    __slots__ = ("_at_start", "_decoder", "_held", "_skip_special", "_vocabulary")

    def __init__(
        self, vocabulary: Vocabulary, skip_special: bool = True, *, drop_leading_space: bool = False
    ) -> None:
        self._vocabulary = vocabulary
        self._skip_special = skip_special
        self._at_start = drop_leading_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = b""

    def push(self, token_ids: Iterable[int], held_bytes: int = 0) -> str:
        """The text that these tokens complete, without the last `held_bytes` bytes of everything so far (and
        without half a character); often "". What a later `finish` shall cut must be held back here."""
        data = self._held + self._vocabulary.join(token_ids, self._skip_special)
        shown = max(0, len(data) - held_bytes)
        self._held = data[shown:]
        return self._show(self._decoder.decode(data[:shown]))

    def finish(self, cut_bytes: int = 0) -> str:
        """The rest of the text, without its last `cut_bytes` bytes. A broken character at the end is U+FFFD.

        Raises ValueError when the cut reaches into what was shown already.
        """
        if cut_bytes > len(self._held):
            raise ValueError(f"cut_bytes is {cut_bytes}, but only {len(self._held)} bytes were held back.")
        data, self._held = self._held[: len(self._held) - cut_bytes], b""
        return self._show(self._decoder.decode(data, final=True))

    def _show(self, text: str) -> str:
        if self._at_start and text:
            self._at_start = False
            return text.removeprefix(" ")
        return text
