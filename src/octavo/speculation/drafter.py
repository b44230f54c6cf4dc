"""What guesses the next tokens: one small interface, and the best of several. Knows no scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

__all__ = ["Drafter", "Guess", "Longest", "Text"]


class Text:
    """A sequence as a drafter sees it."""

    __slots__ = ("accepted", "expected", "memory", "prompt_tokens", "scope", "tokens")

    def __init__(self, tokens: list[int], prompt_tokens: int, scope: str) -> None:
        self.tokens = tokens
        """Prompt and answer; it only grows. Not to be changed."""
        self.prompt_tokens = prompt_tokens
        self.scope = scope
        """Texts of one scope may learn from each other: that of the prefix cache."""
        self.memory: dict[str, object] = {}
        """What a drafter keeps about it, by the drafter's name; gone with the sequence."""
        self.accepted = self.expected = 0.0
        """Tokens of its own drafts that were right, and that should have been; recent ones count the more."""


class Guess(NamedTuple):
    """Tokens that may come next, none where nothing is known."""

    tokens: tuple[int, ...] = ()
    same: int = 0
    """How many tokens before were as they are now, where it was found."""
    source: int = 0
    """Which of several drafters it is from."""


class Drafter(Protocol):
    """Guesses for many texts at once."""

    name: str
    priors: tuple[tuple[float, ...], ...]
    """For each source, by how many tokens before were the same (0 to 16): how often a token is right, before anything
    was measured."""

    def draft(self, texts: Sequence[Text], count: int) -> list[Guess]:
        """For each text, at most `count` tokens. The same texts in the same order give the same guesses."""

    def ended(self, text: Text) -> None:
        """Nothing more comes of it."""


class Longest:
    """Of several drafters' guesses the one that was found behind the most equal tokens; of equal ones the first."""

    def __init__(self, *drafters: Drafter) -> None:
        self.name = "+".join(drafter.name for drafter in drafters)
        self.priors = tuple(levels for drafter in drafters for levels in drafter.priors)
        self._drafters = drafters

    def draft(self, texts: Sequence[Text], count: int) -> list[Guess]:
        best = [Guess()] * len(texts)
        first = 0
        for drafter in self._drafters:
            for number, guess in enumerate(drafter.draft(texts, count)):
                if guess.tokens and guess.same > best[number].same:
                    best[number] = guess._replace(source=first + guess.source)
            first += len(drafter.priors)
        return best

    def ended(self, text: Text) -> None:
        for drafter in self._drafters:
            drafter.ended(text)
