"""How many guessed tokens a step should try: as many as raise the tokens a second, down to none. Knows no text.

A draft costs what one more token costs in the step; it is worth as much as it is likely to be right, all before it too.
With p for that, a batch of B streams in a step of T seconds gains by a draft of cost c as long as p / c > E / T, with E
the tokens expected so far: the marginal gain against the present rate. Since T grows with B and p / c does not, a full
batch leaves nothing to gain (Liu et al. 2024, arXiv:2406.14066, measure the same as goodput).
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace
from typing import NamedTuple

from octavo.speculation.drafter import Text
from octavo.timing.step_time import StepLoad, StepTime

__all__ = ["LEVELS", "Control", "Offer"]

LEVELS = 17
"""Guesses are told apart by how many tokens before were as they are now, up to 16."""
_OWN = 0.8
"""What is left of a text's own counts at each of its next drafts: twenty steps forget all but a hundredth."""
_SHARED = 0.99
"""The same of all texts' counts, at each token."""
_TRUST = 1.0
"""How many tokens of its own a text must have tried to count as much as what is known of all."""
_DOUBT = 8.0
"""How many tokens a prior is worth."""
_FORGET = 0.998
"""A text that tries nothing forgets in each step: it is asked again some time."""
_SUREST = 0.98
"""No chance is taken to be more: a run of right guesses may end."""
_MARGIN = 1.15
"""What a draft is taken to cost, in what it should: chances and times are estimates, and a wrong one must not lose."""
_UNKNOWN_COST = 0.25
"""Of a token, in steps of one, before any step was measured."""


class Offer(NamedTuple):
    """A guess for one text."""

    text: Text
    source: int
    same: int
    tokens: int


class Control:
    """Learns how often guesses are right, and divides a step among them.

    How likely a token of a guess is to be right if all before it are, follows from who guessed and how many tokens
    before it were the same, those of the guess too; and from how this text did against that so far.
    """

    def __init__(
        self, priors: Sequence[Sequence[float]], step_time: StepTime, *, fixed: int | None = None
    ) -> None:
        """`priors`: by source and level. `fixed`: try so many tokens of each guess, whatever they cost (to measure)."""
        self._step_time = step_time
        self.fixed = fixed
        self._accepted = [[_DOUBT * prior for prior in levels] for levels in priors]
        self._tried = [[_DOUBT] * len(levels) for levels in priors]

    def chance(self, text: Text, source: int, level: int) -> float:
        """That a token behind `level` equal ones is right, if those before it are."""
        level = min(level, LEVELS - 1)
        shared = self._accepted[source][level] / self._tried[source][level]
        return min(shared * (text.accepted + _TRUST) / (text.expected + _TRUST), _SUREST)

    def price(self, load: StepLoad) -> float:
        """The least chance at which a draft in a step with this load, of streams that decode, is worth its time."""
        if self.fixed is not None:
            return 0.0
        step, token = self._seconds(load)
        return load.tokens * token / step

    def divide(self, offers: Sequence[Offer], load: StepLoad, room: int, target_s: float | None) -> list[int]:
        """How many tokens of each offer the step tries, `room` together at most, and no longer than `target_s`."""
        if self.fixed is not None:
            counts = []
            for offer in offers:
                counts.append(min(offer.tokens, self.fixed, room))
                room -= counts[-1]
            return counts
        counts = [0] * len(offers)
        step, token = self._seconds(load)
        expected = float(load.tokens)
        heap = [
            (-self.chance(offer.text, offer.source, offer.same), number)
            for number, offer in enumerate(offers)
        ]
        heapify(heap)
        while heap and room:
            gain, number = -heap[0][0], heap[0][1]
            too_long = target_s is not None and self._step_time.known and step + token > target_s
            if gain * step <= expected * token or too_long:
                break
            counts[number] += 1
            room -= 1
            expected += gain
            step += token
            offer, count = offers[number], counts[number]
            more = (
                gain * self.chance(offer.text, offer.source, offer.same + count)
                if count < offer.tokens
                else 0.0
            )
            heapreplace(heap, (-more, number))
        for offer, count in zip(offers, counts, strict=True):
            if not count:
                offer.text.accepted *= _FORGET
                offer.text.expected *= _FORGET
        return counts

    def learn(self, offer: Offer, tried: int, accepted: int) -> None:
        """`tried` tokens of a guess were computed, and the first `accepted` were right."""
        text, source = offer.text, offer.source
        text.accepted *= _OWN
        text.expected *= _OWN
        for place in range(min(accepted + 1, tried)):  # what came behind the first wrong one says nothing
            level = min(offer.same + place, LEVELS - 1)
            text.expected += self._accepted[source][level] / self._tried[source][level]
            text.accepted += place < accepted
            self._accepted[source][level] = _SHARED * self._accepted[source][level] + (place < accepted)
            self._tried[source][level] = _SHARED * self._tried[source][level] + 1

    def _seconds(self, load: StepLoad) -> tuple[float, float]:
        """Of a step with this load, and of one more token in it, chosen behind too."""
        step = self._step_time.predict(load)
        if step <= 0:
            return 1.0 + _UNKNOWN_COST * (load.tokens - 1), _MARGIN * _UNKNOWN_COST
        more = load._replace(tokens=load.tokens + 1, samples=load.samples + 1)
        return step, _MARGIN * max(self._step_time.predict(more) - step, 1e-3 * step)
