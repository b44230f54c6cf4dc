"""Drafts for a scheduler's next step: who may have some, from whom, how many. Computes and verifies nothing."""

from __future__ import annotations

from collections.abc import Sequence as Items

from octavo.scheduling.inputs import Draft
from octavo.scheduling.scheduler import Scheduler
from octavo.scheduling.sequence import Sequence
from octavo.scheduling.verifying import Verified
from octavo.speculation.control import Control, Offer
from octavo.speculation.drafter import Drafter, Text
from octavo.timing.step_time import StepLoad

__all__ = ["MOST_TOKENS", "Speculator"]

MOST_TOKENS = 16
"""Tokens of a guess."""


_LOOK_EVERY = 16
"""Steps, while as many run as before: one may have ended as another one began."""


class Speculator:
    """Reads the scheduler between two steps; its drafts enter with the inputs, so that a log holds them."""

    def __init__(self, drafter: Drafter, scheduler: Scheduler, *, fixed: int | None = None) -> None:
        """`fixed`: so many tokens in every step, whatever they cost."""
        self._drafter = drafter
        self._scheduler = scheduler
        self.control = Control(drafter.priors, scheduler.step_time, fixed=fixed)
        self._texts: dict[Sequence, Text] = {}
        self._offers: dict[Sequence, Offer] = {}
        """The guesses that the step may try."""
        self._asked = self._running = 0
        """How often it was asked, and how many sequences ran then."""
        self.accepted_at = [0] * MOST_TOKENS
        """Steps in which the draft at a place was right."""

    def propose(self) -> tuple[Draft, ...]:
        """For the next step."""
        scheduler = self._scheduler
        self._asked += 1
        if len(scheduler.running) < self._running or self._asked % _LOOK_EVERY == 0:
            self._look_for_ends()
        self._running = len(scheduler.running)
        streams = [
            one
            for one in scheduler.running
            if one.gap == 1
            and one.output_tokens
            and len(one.tokens) == one.total
            and not one.request.params.beam_width
        ]
        if not streams:
            return ()
        load = StepLoad(len(streams), len(streams), sum([one.computed + 1 for one in streams]), 0)
        price = self.control.price(load)
        if price >= 1.0:
            return ()
        asked = [(one, self._text(one)) for one in streams]
        guesses = self._drafter.draft([text for _, text in asked], self.control.fixed or MOST_TOKENS)
        found = [
            (one, text, guess) for (one, text), guess in zip(asked, guesses, strict=True) if guess.tokens
        ]
        offers = [Offer(text, guess.source, guess.same, len(guess.tokens)) for _, text, guess in found]
        room = scheduler.config.step_tokens - len(streams)
        targets = [seconds for one in streams if (seconds := one.between_s) is not None]
        counts = self.control.divide(offers, load, max(room, 0), min(targets, default=None))
        self._offers = {one: offer for (one, _, _), offer in zip(found, offers, strict=True)}
        return tuple(
            [
                Draft(one.request.id, one.child, guess.tokens[:count])
                for (one, _, guess), count in zip(found, counts, strict=True)
                if count
            ]
        )

    def learn(self, verified: Items[Verified]) -> None:
        """What became of the drafts of a step."""
        for one in verified:
            offer = self._offers.get(one.sequence)
            if offer is not None:
                self.control.learn(offer, one.drafts, one.accepted)
            for place in range(one.accepted):
                self.accepted_at[place] += 1

    def _text(self, sequence: Sequence) -> Text:
        text = self._texts.get(sequence)
        if text is None:
            scope = sequence.request.add.cache_salt
            text = self._texts[sequence] = Text(sequence.tokens, sequence.prompt_tokens, scope)
        return text

    def _look_for_ends(self) -> None:
        """Drafters are told of sequences that ended since the last time."""
        ended = [one for one in self._texts if one.finished]
        for one in ended:
            self._drafter.ended(self._texts.pop(one))
