"""What guesses the next tokens: one small interface, and several as one. Knows no scheduler and no tensor."""

from __future__ import annotations

from collections.abc import Sequence
from math import log1p
from typing import NamedTuple, Protocol

from octavo.backends.base import ChoiceRule
from octavo.sampling.guide import Guide

__all__ = ["Drafter", "Elsewhere", "Guess", "Prior", "Several", "Text"]


class Elsewhere:
    """What came at all the places that are like the one where a guess was found, that one too."""

    __slots__ = ("_places", "_tokens")

    def __init__(self, tokens: tuple[int, ...], places: Sequence[tuple[list[int], int, int]]) -> None:
        """`tokens`: of the guess. `places`: a list of tokens, where it goes on, how many tokens before are the same."""
        self._tokens = tokens
        self._places = places

    def at(self, place: int) -> tuple[float, float, float]:
        """Of the token at `place`: the share of the other places that have another one, by their lengths; the logarithm
        of how many have the same; and how long the longest one is that has another, as a part of 16 tokens."""
        token = self._tokens[place]
        agree = differ = 0.0
        same = rival = 0
        for tokens, start, length in self._places:
            if start + place < len(tokens):
                if tokens[start + place] == token:
                    agree += length
                    same += 1
                else:
                    differ += length
                    rival = max(rival, length)
        return differ / (agree + differ + 2.0), log1p(same), rival / 16.0


class Guess(NamedTuple):
    """Tokens that may come next."""

    tokens: tuple[int, ...]
    same: int
    """How many tokens before were as they are now, where it was found."""
    source: int = 0
    """Which of several sources it is from."""
    elsewhere: Elsewhere | None = None
    """What else is known of it."""


class Text:
    """A sequence as a drafter sees it."""

    __slots__ = (
        "biases",
        "guessed_at",
        "guesses",
        "guide",
        "memory",
        "prediction",
        "prompt_tokens",
        "records",
        "rule",
        "scope",
        "tokens",
    )

    def __init__(
        self,
        tokens: list[int],
        prompt_tokens: int,
        scope: str = "",
        *,
        prediction: tuple[int, ...] = (),
        rule: ChoiceRule | None = None,
        guide: Guide | None = None,
    ) -> None:
        self.tokens = tokens
        """Prompt and answer; it only grows. Not to be changed."""
        self.prompt_tokens = prompt_tokens
        self.scope = scope
        """Texts of one scope may learn from each other: that of the prefix cache."""
        self.prediction = prediction
        """What its client expects as the answer."""
        self.rule = rule or ChoiceRule(prompt_tokens)
        """How its tokens are chosen."""
        self.guide = guide
        """Where it stands in its grammar, if it has one."""
        self.memory: dict[str, object] = {}
        """What a drafter keeps about it, by the drafter's name; gone with the sequence."""
        self.guesses: list[Guess] = []
        """The last ones, and how many tokens it had then: what came since tells how good they were."""
        self.guessed_at = 0
        self.records: dict[int, float] = {}
        """By source: the share of its tokens here that were right, of recent ones the more."""
        self.biases: dict[int, float] = {}
        """By source: how much better than expected they were here (added to the log-odds)."""


class Prior(NamedTuple):
    """How likely a token of a source is to be right, before anything was measured: weights of a logistic regression."""

    bias: float
    level: float
    """Of log(1 + the tokens before it that were the same, those of the guess too)."""
    record: float
    """Of the source's record in this text, 0 to 1."""
    doubt: float
    agreement: float
    rival: float
    """Of what `Elsewhere.at` gives."""


class Drafter(Protocol):
    """Guesses for many texts at once."""

    name: str
    priors: tuple[Prior, ...]
    """One for each source that its guesses name."""

    def draft(self, texts: Sequence[Text], count: int) -> list[list[Guess]]:
        """For each text some guesses of at most `count` tokens each, or none. The same texts in the same order give the
        same guesses."""

    def ended(self, text: Text) -> None:
        """Nothing more comes of it."""


class Several:
    """All the guesses of several drafters; their sources count on."""

    def __init__(self, *drafters: Drafter) -> None:
        self.name = "+".join(drafter.name for drafter in drafters)
        self.priors = tuple(prior for drafter in drafters for prior in drafter.priors)
        self._drafters = drafters

    def draft(self, texts: Sequence[Text], count: int) -> list[list[Guess]]:
        first, *others = self._drafters
        all_guesses = first.draft(texts, count)
        sources = len(first.priors)
        for drafter in others:
            for found, more in zip(all_guesses, drafter.draft(texts, count), strict=True):
                if more:
                    found += [guess._replace(source=sources + guess.source) for guess in more]
            sources += len(drafter.priors)
        return all_guesses

    def ended(self, text: Text) -> None:
        for drafter in self._drafters:
            drafter.ended(text)
