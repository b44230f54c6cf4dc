"""What an answer's text is made of: plain text, reasoning, calls of tools. Knows no model's marks and no API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

__all__ = ["Piece", "PlainText", "Splitter", "overlap"]


class Piece(NamedTuple):
    """What is new in one part of an answer. The pieces of a part, joined, are its text."""

    text: str
    kind: Literal["text", "reasoning", "call"] = "text"
    call: int = 0
    """Of a call: which, from 0. Its text is that of the arguments, a JSON object."""
    name: str | None = None
    """Of a call's first piece: the function."""


class Splitter(Protocol):
    """Takes a text as it comes, and tells its parts. However the text is cut, the pieces join to the same parts."""

    def push(self, text: str) -> Sequence[Piece]:
        """What `text` lets be told; a mark that is not whole yet is kept back."""

    def finish(self) -> Sequence[Piece]:
        """The rest, when no more will come."""

    @property
    def cut_off(self) -> bool:
        """The text so far ends within the arguments of a call."""


class PlainText:
    """All of it is text."""

    cut_off = False

    def push(self, text: str) -> Sequence[Piece]:
        return (Piece(text),) if text else ()

    def finish(self) -> Sequence[Piece]:
        return ()


def overlap(text: str, mark: str) -> int:
    """How many characters at the end of `text` may be the beginning of `mark`; never all of it."""
    return next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:n])), 0)
