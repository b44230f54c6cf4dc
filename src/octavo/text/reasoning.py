"""Reasoning, told apart from the answer that follows it. Knows the marks of the families that have it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from octavo.text.pieces import Piece, Splitter, overlap
from octavo.text.vocabulary import Vocabulary

__all__ = ["ReasoningFormat", "ReasoningSplitter", "reasoning_of"]


class ReasoningFormat(NamedTuple):
    """Reasoning stands at the beginning of an answer, between two marks."""

    opening: str
    closing: str


_FORMATS = (ReasoningFormat("<think>", "</think>"), ReasoningFormat("[THINK]", "[/THINK]"))


def reasoning_of(template: str | None) -> ReasoningFormat | None:
    """What a chat template knows of; None where it knows of none."""
    return next((form for form in _FORMATS if template and form.closing in template), None)


class ReasoningSplitter:
    """Reasoning first, then what `rest` tells of the text behind it. White space around both belongs to neither.

    `begun`: the prompt has opened it already. An answer that does not begin with the opening mark has none.
    """

    def __init__(self, form: ReasoningFormat, rest: Splitter, *, begun: bool = False) -> None:
        self._form = form
        self._rest = rest
        self._held = ""
        self._inside: bool | None = True if begun else None
        self._shown = self._after = False

    def tokens_of(self, answer: Iterable[int], vocabulary: Vocabulary) -> int:
        """How many of an answer's tokens are reasoning, its marks among them; it has some."""
        closing, text = self._form.closing.encode(), b""
        tokens = list(answer)
        for count, token in enumerate(tokens, 1):
            text = text[-len(closing) :] + vocabulary.bytes_of(token, skip_special=False)
            if closing in text:
                return count
        return len(tokens)

    def push(self, text: str) -> Sequence[Piece]:
        if self._inside is False:
            return self._pass_on(text)
        self._held += text
        if self._inside is None:
            held, opening = self._held.lstrip(), self._form.opening
            if held.startswith(opening):
                self._inside, self._held = True, held.removeprefix(opening)
            elif opening.startswith(held):
                return ()
            else:
                self._inside, held, self._held = False, self._held, ""
                return self._rest.push(held)
        place = self._held.find(self._form.closing)
        if place >= 0:
            text = self._held[place + len(self._form.closing) :]
            pieces = self._told(self._held[:place].rstrip())
            self._held = ""
            self._inside, self._after = False, True
            return [*pieces, *self._pass_on(text)]
        return self._told(self._without_end())

    @property
    def cut_off(self) -> bool:
        return self._rest.cut_off

    def finish(self) -> Sequence[Piece]:
        pieces: Sequence[Piece] = ()
        if self._inside:
            pieces = self._told(self._held)
        elif self._inside is None and self._held:
            pieces = self._rest.push(self._held)
        self._held = ""
        return [*pieces, *self._rest.finish()]

    def _without_end(self) -> str:
        """What is held, less what may be the closing mark's beginning and the white space before it."""
        held = self._held
        return held[: len(held) - overlap(held, self._form.closing)].rstrip()

    def _told(self, text: str) -> Sequence[Piece]:
        """The next `text` of what is held, as reasoning."""
        self._held = self._held[len(text) :]
        if not self._shown:
            text = text.lstrip()
        self._shown = self._shown or bool(text)
        return (Piece(text, "reasoning"),) if text else ()

    def _pass_on(self, text: str) -> Sequence[Piece]:
        if self._after:
            text = text.lstrip()
            self._after = not text
        return self._rest.push(text) if text else ()
