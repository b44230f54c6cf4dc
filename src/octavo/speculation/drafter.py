"""What guesses the next tokens: one small interface, and a table of those there are. Knows no scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

__all__ = ["Drafter", "Guess", "Text"]


class Text:
    """A sequence as a drafter sees it."""

    __slots__ = ("accepted", "memory", "prompt_tokens", "tenant", "tokens", "tried")

    def __init__(self, tokens: list[int], prompt_tokens: int, tenant: str) -> None:
        self.tokens = tokens
        """Prompt and answer; it only grows. Not to be changed."""
        self.prompt_tokens = prompt_tokens
        self.tenant = tenant
        self.memory: dict[str, object] = {}
        """What a drafter keeps about it, by the drafter's name; gone with the sequence."""
        self.accepted = self.tried = 0.0
        """Of its own drafts, recent ones the more."""


class Guess(NamedTuple):
    """Tokens that may come next, none where nothing is known."""

    tokens: tuple[int, ...] = ()
    kind: int = 0
    """How sure, as a place in the drafter's `priors`."""


class Drafter(Protocol):
    """Guesses for many texts at once."""

    name: str
    priors: tuple[float, ...]
    """For each kind of guess: how often a token of it is right, before anything was measured."""

    def draft(self, texts: Sequence[Text], count: int) -> list[Guess]:
        """For each text, at most `count` tokens. The same texts give the same guesses."""
