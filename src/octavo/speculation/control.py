"""How many guessed tokens a step should try: as many as raise the tokens a second, down to none. Knows no text.

A draft costs what one more token costs in the step; it is worth as much as it is likely to be right, all before it too.
With p for that, a batch of B streams in a step of T seconds gains by a draft of cost c as long as p / c > E / T, with E
the tokens expected so far: the marginal gain against the present rate. Since T grows with B and p / c does not, a full
batch leaves nothing to gain (Liu et al. 2024, arXiv:2406.14066, measure the same as goodput).

How likely a token is to be right is a logistic regression that learns from every guess, also from those that were not
tried: what came instead tells for nothing. So it costs no wrong draft to find out that a text cannot be guessed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heapify, heapreplace
from typing import NamedTuple

from octavo.speculation.drafter import Guess, Prior, Text
from octavo.timing.step_time import StepLoad, StepTime

__all__ = ["Control", "Offer"]

_LONG = 16
"""Equal tokens before, from which on more do not matter."""
_LEVELS = tuple(math.log1p(level) for level in range(_LONG + 1))
_NOTHING = (0.0, 0.0, 0.0)
_RATE = 0.05
"""Of learning, for what all texts share."""
_OWN_RATE = 0.2
"""The same for a text's own bias: twenty steps turn it round."""
_OWN_MEMORY = 0.95
"""What is left of a text's bias at each of its next guesses."""
_RECORD_MEMORY = 0.8
"""The same of its record, for each token."""
_NO_RECORD = 0.4
"""The record of a text that has none."""
_SUREST = 0.99
"""No chance is taken to be more: a run of right guesses may end."""
_MARGIN = 1.15
"""What a draft is taken to cost, in what it should: chances and times are estimates, and a wrong one must not lose."""
_LOOK = 4
"""Places by which two guesses for one text are compared."""
_LEAST_COST = 0.02
"""Of a draft, in steps: the scheduler has to look at it, whatever the kernels take."""
_FORGET = 0.01
"""How much better a model is thought of with each step in which it was not worth asking."""
_UNKNOWN_DRAFT = 0.2
"""A draft model's step, in steps of the other one, before any was measured."""
_UNKNOWN_COST = 0.25
"""Of a token, in steps of one, before any step was measured."""


class Offer(NamedTuple):
    """A guess for one text."""

    text: Text
    guess: Guess


class Control:
    """Learns how often guesses are right, and divides a step among them."""

    def __init__(self, priors: Sequence[Prior], step_time: StepTime, *, fixed: int | None = None) -> None:
        """`priors`: by source. `fixed`: try so many tokens of each guess, whatever they cost (to measure)."""
        self._step_time = step_time
        self.fixed = fixed
        self._weights = [list(prior) for prior in priors]

    def chance(self, text: Text, guess: Guess, place: int) -> float:
        """That the token at `place` is right, if those before it are."""
        source = guess.source
        score = text.biases.get(source, 0.0)
        for weight, value in zip(self._weights[source], _features(text, guess, place), strict=True):
            score += weight * value
        return min(1.0 / (1.0 + math.exp(-score)), _SUREST)

    def best(self, text: Text, guesses: Sequence[Guess]) -> Offer:
        """Of one text's guesses the one of whose first tokens the most should be right."""
        if len(guesses) == 1:
            return Offer(text, guesses[0])
        return Offer(text, max(guesses, key=lambda guess: self.expected(text, guess, _LOOK)))

    def expected(self, text: Text, guess: Guess, most: int) -> float:
        """How many of the first `most` tokens should be right."""
        run, total = 1.0, 0.0
        for place in range(min(most, len(guess.tokens))):
            run *= self.chance(text, guess, place)
            total += run
        return total

    def prefers(self, text: Text, guess: Guess) -> bool:
        """Should more of such a guess be right than of the best that there is?"""
        expected = self.expected(text, guess, _LOOK)
        return all(self.expected(text, other, _LOOK) < expected for other in text.guesses)

    def depth(self, texts: Sequence[Text], guess: Guess, load: StepLoad, draft_s: float) -> int:
        """How many tokens a model should guess for each of these texts, one step of it of `draft_s` (0: not known yet)
        for each token of all. `guess`: what its guesses are like."""
        if not texts or self.fixed is not None:
            return self.fixed or 0
        cost = self._cost(load)
        draft_s = _MARGIN * (draft_s or _UNKNOWN_DRAFT * cost.plain_s)
        runs = [1.0] * len(texts)
        expected, step, count = float(load.tokens), cost.plain_s, 0
        while count < len(guess.tokens):
            runs = [run * self.chance(text, guess, count) for run, text in zip(runs, texts, strict=True)]
            gain, taken = sum(runs), count * len(texts)
            more = draft_s + sum([cost.token(taken + 1 + at) for at in range(len(texts))])
            if gain * step <= expected * more:
                break
            count += 1
            expected += gain
            step += more
        if not count:
            for text in texts:  # it is asked again some time
                record = text.records.get(guess.source, _NO_RECORD)
                text.records[guess.source] = record + _FORGET * (1.0 - record)
                text.biases[guess.source] = text.biases.get(guess.source, 0.0) * (1.0 - _FORGET)
        return count

    def price(self, load: StepLoad) -> float:
        """The least chance at which a draft in a step with this load, of streams that decode, is worth its time."""
        if self.fixed is not None:
            return 0.0
        cost = self._cost(load)
        return load.tokens * cost.token(1) / cost.plain_s

    def divide(self, offers: Sequence[Offer], load: StepLoad, room: int, target_s: float | None) -> list[int]:
        """How many tokens of each offer the step tries, `room` together at most, and no longer than `target_s`."""
        counts = [0] * len(offers)
        if self.fixed is not None:
            for number, offer in enumerate(offers):
                counts[number] = min(len(offer.guess.tokens), self.fixed, room)
                room -= counts[number]
            return counts
        cost = self._cost(load)
        expected, step, taken = float(load.tokens), cost.plain_s, 0
        heap = [(-self.chance(*offer, 0), number) for number, offer in enumerate(offers)]
        heapify(heap)
        while heap and room:
            gain, number = -heap[0][0], heap[0][1]
            token = cost.token(taken + 1)
            too_long = target_s is not None and self._step_time.known and step + token > target_s
            if gain * step <= expected * token or too_long:
                break
            counts[number] += 1
            taken += 1
            room -= 1
            expected += gain
            step += token
            count = counts[number]
            more = (
                gain * self.chance(*offers[number], count)
                if count < len(offers[number].guess.tokens)
                else 0.0
            )
            heapreplace(heap, (-more, number))
        return counts

    def learn(self, text: Text) -> None:
        """Compare the text's last guesses, tried or not, with what came."""
        came = text.tokens[text.guessed_at :]
        if not came:
            return
        for guess in text.guesses:
            source = guess.source
            weights, bias = self._weights[source], text.biases.get(source, 0.0) * _OWN_MEMORY
            record = text.records.get(source, _NO_RECORD)
            for place, (guessed, token) in enumerate(zip(guess.tokens, came, strict=False)):
                right = guessed == token
                error = right - self.chance(text, guess, place)
                bias += _OWN_RATE * error
                for number, value in enumerate(_features(text, guess, place)):
                    weights[number] += _RATE * error * value
                record = _RECORD_MEMORY * record + (1.0 - _RECORD_MEMORY) * right
                if not right:
                    break  # what came behind the first wrong one says nothing
            text.biases[source], text.records[source] = bias, record
        text.guesses = []

    def _cost(self, load: StepLoad) -> _Cost:
        return _Cost(self._step_time, load)


class _Cost:
    """What drafts cost in a step with a given load."""

    def __init__(self, step_time: StepTime, load: StepLoad) -> None:
        self._step_time, self._load = step_time, load
        self.plain_s = self._after = step_time.predict(load)
        """Seconds of the step without drafts; any unit while nothing is known of the machine."""
        self._known = self.plain_s > 0
        if not self._known:
            self.plain_s = 1.0 + _UNKNOWN_COST * (load.tokens - 1)
        self._tokens: list[float] = []

    def token(self, number: int) -> float:
        """Seconds of the draft with this number, from 1 on: chosen behind, too."""
        while len(self._tokens) < number:
            if not self._known:
                self._tokens.append(_MARGIN * _UNKNOWN_COST)
                continue
            more, load = len(self._tokens) + 1, self._load
            after = self._step_time.predict(
                load._replace(tokens=load.tokens + more, samples=load.samples + more)
            )
            self._tokens.append(max(_MARGIN * (after - self._after), _LEAST_COST * self.plain_s))
            self._after = after
        return self._tokens[number - 1]


def _features(text: Text, guess: Guess, place: int) -> tuple[float, ...]:
    """In the order of `Prior`."""
    return (
        1.0,
        _LEVELS[min(guess.same + place, _LONG)],
        text.records.get(guess.source, _NO_RECORD),
        *(_NOTHING if guess.elsewhere is None else guess.elsewhere.at(place)),
    )
