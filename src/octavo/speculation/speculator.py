"""Drafts for a scheduler's next step: who may have some, from whom, how many. Computes and verifies nothing."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items

from octavo.sampling.guide import Guide
from octavo.scheduling.inputs import Draft
from octavo.scheduling.scheduler import Scheduler
from octavo.scheduling.sequence import Sequence
from octavo.scheduling.verifying import Verified
from octavo.speculation.control import Control
from octavo.speculation.draft_model import ModelDrafter
from octavo.speculation.drafter import Drafter, Guess, Text
from octavo.timing.step_time import StepLoad

__all__ = ["MOST_TOKENS", "Speculator"]

MOST_TOKENS = 16
"""Tokens of a guess."""
_LOOK_EVERY = 16
"""Steps, while as many run as before: one may have ended as another one began."""


class Speculator:
    """Reads the scheduler between two steps; its drafts enter with the inputs, so that a log holds them."""

    def __init__(
        self,
        drafter: Drafter,
        scheduler: Scheduler,
        *,
        model: ModelDrafter | None = None,
        fixed: int | None = None,
        guide_of: Callable[[Sequence], Guide | None] = lambda _: None,
    ) -> None:
        """`drafter` guesses for next to nothing, `model` at a price. `fixed`: so many tokens in every step, whatever
        they cost. `guide_of`: where the answer of a sequence with a grammar stands now."""
        self._drafter = drafter
        self._scheduler = scheduler
        self._guide_of = guide_of
        self._model = model
        self._model_guess = Guess((0,) * MOST_TOKENS, 0, len(drafter.priors))
        """What a guess of the model will be like."""
        priors = (*drafter.priors, *(model.priors if model else ()))
        self.control = Control(priors, scheduler.step_time, fixed=fixed)
        self._texts: dict[Sequence, Text] = {}
        self._asked = self._running = 0
        """How often it was asked, and how many sequences ran then."""
        self.reached_at = [0] * MOST_TOKENS
        self.accepted_at = [0] * MOST_TOKENS
        """By place in a guess: how often a draft was tried there with all before it right, and was right too."""

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
        if not streams or not scheduler.verifier.has_room(len(scheduler.running)):
            return ()
        load = StepLoad(len(streams), len(streams), sum([one.computed + 1 for one in streams]), 0)
        if self.control.price(load) >= 1.0:
            return ()
        texts = [self._text(one) for one in streams]
        self._guess(texts, load)
        found = [
            (one, self.control.best(text, text.guesses))
            for one, text in zip(streams, texts, strict=True)
            if text.guesses
        ]
        room = scheduler.config.step_tokens - len(streams)
        targets = [seconds for one in streams if (seconds := one.between_s) is not None]
        offers = [offer for _, offer in found]
        target_s = min(targets, default=None)
        if target_s is not None and self._model is not None:
            target_s -= self._model.spent_s
        counts = self.control.divide(offers, load, max(room, 0), target_s)
        return tuple(
            [
                Draft(one.request.id, one.child, offer.guess.tokens[:count])
                for (one, offer), count in zip(found, counts, strict=True)
                if count
            ]
        )

    def verified(self, drafts: Items[Verified]) -> None:
        """What became of the drafts of a step."""
        for one in drafts:
            for place in range(one.accepted):
                self.reached_at[place] += 1
                self.accepted_at[place] += 1
            if one.accepted < one.drafts:
                self.reached_at[one.accepted] += 1

    def check(self) -> None:
        """Prove that the draft model leaked nothing. Raises AssertionError."""
        if self._model is not None:
            self._model.check()

    def close(self) -> None:
        """Free the draft model."""
        if self._model is not None:
            self._model.close()

    def _guess(self, texts: list[Text], load: StepLoad) -> None:
        """New guesses for each text, after a look at what became of the last ones."""
        control = self.control
        count = control.fixed or MOST_TOKENS
        guided = [text for text in texts if text.guide is not None]
        for text in texts:
            if text.guesses:
                control.learn(text)
            text.guesses, text.guessed_at = [], len(text.tokens)
        if self._model is None or control.fixed is None:  # to measure a model, nothing but the model
            for text, found in zip(texts, self._drafter.draft(texts, count), strict=True):
                text.guesses = found
            _cut(guided)
        if self._model is None:
            return
        asked = [text for text in texts if control.prefers(text, self._model_guess)]
        self._model.spent_s = 0.0
        count = control.depth(asked, self._model_guess, load, self._model.seconds(len(asked), load.kv_tokens))
        if count:
            source = self._model_guess.source
            for text, found in zip(asked, self._model.draft(asked, count), strict=True):
                text.guesses += [guess._replace(source=source) for guess in found]
            _cut(guided)

    def _text(self, sequence: Sequence) -> Text:
        text = self._texts.get(sequence)
        guide = self._guide_of(sequence) if sequence.request.params.grammar is not None else None
        if text is None:
            add = sequence.request.add
            text = self._texts[sequence] = Text(
                sequence.tokens,
                sequence.prompt_tokens,
                add.cache_salt,
                prediction=add.service.prediction,
                rule=sequence.request.rule(sequence.child),
                guide=guide,
            )
        return text

    def _look_for_ends(self) -> None:
        """Drafters are told of sequences that ended since the last time."""
        ended = [one for one in self._texts if one.finished]
        for one in ended:
            text = self._texts.pop(one)
            self._drafter.ended(text)
            if self._model is not None:
                self._model.ended(text)


def _cut(texts: Items[Text]) -> None:
    """Guesses end before the first token that the text's grammar forbids there."""
    for text in texts:
        assert text.guide is not None
        kept = [(guess, text.guide.allowed(guess.tokens)) for guess in text.guesses]
        text.guesses = [guess._replace(tokens=guess.tokens[:count]) for guess, count in kept if count]
