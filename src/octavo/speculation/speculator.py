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


class Speculator:
    """Reads the scheduler between two steps; its drafts enter with the inputs, so that a log holds them."""

    def __init__(self, drafter: Drafter, scheduler: Scheduler, *, fixed: int | None = None) -> None:
        """`fixed`: so many tokens in every step, whatever they cost."""
        self._drafter = drafter
        self._scheduler = scheduler
        self.control = Control(drafter.priors, scheduler.step_time, fixed=fixed)
        self._texts: dict[Sequence, Text] = {}
        self._kinds: dict[Sequence, int] = {}
        """Of the guesses that the step tries."""
        self.accepted_at = [0] * MOST_TOKENS
        """Steps in which the draft at a place was right."""

    def propose(self) -> tuple[Draft, ...]:
        """For the next step."""
        scheduler = self._scheduler
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
        asked = [(one, text) for one in streams if self.control.best_chance(text := self._text(one)) > price]
        if not asked:
            return ()
        guesses = self._drafter.draft([text for _, text in asked], self.control.fixed or MOST_TOKENS)
        found = [
            (one, text, guess) for (one, text), guess in zip(asked, guesses, strict=True) if guess.tokens
        ]
        offers = [Offer(text, guess.kind, len(guess.tokens)) for _, text, guess in found]
        room = scheduler.config.step_tokens - len(streams)
        targets = [seconds for one in streams if (seconds := one.between_s) is not None]
        counts = self.control.divide(offers, load, max(room, 0), min(targets, default=None))
        self._kinds = {one: guess.kind for one, _, guess in found}
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
            text = self._texts.get(one.sequence)
            if text is not None:
                self.control.learn(text, self._kinds.get(one.sequence, 0), one.drafts, one.accepted)
            for place in range(one.accepted):
                self.accepted_at[place] += 1

    def _text(self, sequence: Sequence) -> Text:
        text = self._texts.get(sequence)
        if text is None:
            if len(self._texts) > 2 * self._scheduler.limits.max_slots:  # of some that ended
                running = set(self._scheduler.running)
                self._texts = {one: kept for one, kept in self._texts.items() if one in running}
            request = sequence.request
            text = self._texts[sequence] = Text(sequence.tokens, sequence.prompt_tokens, request.tenant[0])
        return text
