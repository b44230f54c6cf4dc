"""Beam search over the tokens of one request: which beams live on, which are complete. Knows no block and no text.

The search of Hugging Face's `generate(num_beams=…)`: of all continuations of the living beams the 2·width most likely
are looked at in turn; one that ends is complete if it is among the first `width`, one that does not lives on until
there are `width`. A complete answer's score is its log-probability divided by its length to the power of
`length_penalty` (Wu et al. 2016, arXiv:1609.08144, in the simpler form that is in use).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Literal, NamedTuple, TypeVar

__all__ = ["BeamSearch", "Complete", "EarlyStopping", "Step"]

EarlyStopping = Literal[True, False, "never"]
E = TypeVar("E")


class Step(NamedTuple):
    """One beam goes on by one token."""

    parent: int
    """Which of the living beams it goes on from."""
    token: int
    logprob: float
    """Of the token."""
    total: float
    """Of the whole answer so far."""


class Complete(NamedTuple, Generic[E]):
    """An answer that has ended."""

    score: float
    step: Step
    """Its last."""
    end: E


class BeamSearch(Generic[E]):
    """`E`: how an answer ended."""

    def __init__(
        self, width: int, *, length_penalty: float, early_stopping: EarlyStopping, max_tokens: int
    ) -> None:
        self.width = width
        self._length_penalty = length_penalty
        self._early_stopping = early_stopping
        self._max_tokens = max_tokens
        self._best: list[float] = []
        """Scores of the best complete answers, at most `width`, falling."""
        self.length = 0
        """Tokens of each living beam."""
        self.totals: list[float] = [0.0]
        """Log-probability of each living beam."""

    def score(self, total: float, length: int) -> float:
        return float(total / length**self._length_penalty)

    def expand(
        self,
        candidates: Sequence[Sequence[tuple[int, float]]],
        ending: Callable[[int, int], E | None],
    ) -> tuple[list[Step], list[Complete[E]]]:
        """The next living beams, and the answers that became complete.

        `candidates`: for each living beam the most likely tokens, with log-probabilities; 2·width of them, and more if
        some are to be passed over. `ending(beam, token)`: how the token would end it; None when it goes on. When
        nobody lives on, the search is over.
        """
        steps = [
            Step(parent, token, logprob, self.totals[parent] + logprob)
            for parent, ranked in enumerate(candidates)
            for token, logprob in ranked
        ]
        steps.sort(key=lambda step: (-step.total, step.parent, step.token))
        self.length += 1
        living: list[Step] = []
        complete: list[Complete[E]] = []
        for place, step in enumerate(steps[: 2 * self.width]):
            end = ending(step.parent, step.token)
            if end is None:
                if len(living) < self.width:
                    living.append(step)
            elif place < self.width or self.length >= self._max_tokens:
                complete.append(Complete(self.score(step.total, self.length), step, end))
        scores = sorted((*self._best, *(one.score for one in complete)), reverse=True)
        self._best = scores[: self.width]
        if self._over(living):
            living = []
        self.totals = [step.total for step in living]
        return living, complete

    def _over(self, living: Sequence[Step]) -> bool:
        """Can no living beam become one of the best?"""
        if not living:
            return True
        if len(self._best) < self.width:
            return False
        if self._early_stopping is True:
            return True
        # A log-probability only falls; with a positive penalty its score may still rise as the answer grows.
        never = self._early_stopping == "never" and self._length_penalty > 0
        length = self._max_tokens if never else self.length
        return self.score(living[0].total, length) <= self._best[-1]
