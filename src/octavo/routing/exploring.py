"""Sends a small share of requests elsewhere than was decided, so that outcomes are known for both. Knows chances.

With which probability each tier was taken (its propensity) is known and recorded: an estimate of what another
threshold would have brought needs nothing else (Horvitz and Thompson 1952).
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from octavo.routing.bill import Usage

if TYPE_CHECKING:
    from octavo.routing.asked import Asked
    from octavo.routing.course import Course
    from octavo.routing.decider import Verdict
    from octavo.routing.feeding import Purse
    from octavo.routing.tiers import Tier

__all__ = ["Exploring"]

_ANSWER_TOKENS = 1024
"""Where the client names no limit."""


class Exploring:
    """A share of the requests."""

    def __init__(
        self, share: float, purse: Purse, among: Collection[str], *, seed: int | None = None
    ) -> None:
        """`among`: tiers that a request may go to instead. `seed`: of what is drawn; None takes another one each
        time."""
        self._share, self._purse, self._among = share, purse, among
        self._random = random.Random(seed)
        self._taken: dict[int, float] = {}

    def maybe(self, verdict: Verdict, able: Sequence[Tier], asked: Asked) -> Verdict:
        """The verdict with its propensity, perhaps for another tier. Whether money is left does not depend on what is
        drawn now, so that the propensity is what it says."""
        others = [tier for tier in able if tier.name != verdict.tier and tier.name in self._among]
        if not others or verdict.score is None or verdict.abstained:
            return verdict
        usage = Usage(asked.prompt_tokens, 0, asked.answer_tokens or _ANSWER_TOKENS)
        costs = [0.0 if tier.price is None else tier.price.cost(usage) for tier in others]
        if not self._purse.has(max(costs)):
            return verdict
        each = self._share / len(others)
        if self._random.random() >= self._share:
            return dataclasses.replace(verdict, propensity=1 - self._share, elsewhere=each)
        place = self._random.randrange(len(others))
        self._purse.take(costs[place])
        self._taken[id(asked)] = costs[place]
        return dataclasses.replace(
            verdict,
            tier=others[place].name,
            decided=verdict.tier,
            reason=f"explores instead of {verdict.tier}: {verdict.reason}",
            propensity=each,
            elsewhere=each,
        )

    def on_end(self, course: Course) -> None:
        """What it really cost."""
        taken = self._taken.pop(id(course.asked), None)
        if taken is not None:
            self._purse.settle(taken, course.cost or 0.0)

    @property
    def spent(self) -> float:
        """Today."""
        return self._purse.spent
