"""Guesses that are right as often as somebody says: what a simulation puts in place of a drafter that reads a text.

The speculator, its control and the verifier are those that serve. Whether the token at a place is guessed is drawn by
its sequence and its position, never by the batch; and what is guessed wrongly costs what it costs. Knows no workload.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from octavo.backends.base import ChoiceRule, Limits, Plan, SampleRow, TokenSample
from octavo.errors import InvalidParameter, SettingsError
from octavo.models.spec import ModelSpec
from octavo.scheduling.scheduler import Scheduler
from octavo.simulation.backend import SimulatedBackend, answer_of
from octavo.simulation.catalogue import nearest
from octavo.simulation.draws import CHILDREN, uniform
from octavo.simulation.pace import Pace
from octavo.speculation.draft_model import ModelDrafter
from octavo.speculation.drafter import Guess, Prior, Text
from octavo.speculation.profile import Profile
from octavo.speculation.speculator import MOST_TOKENS, Speculator
from octavo.timing.clock import Clock, ManualClock

__all__ = ["DrawnDraftModel", "DrawnDrafter", "Guessing", "speculator_of"]

_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_BEGINS = 1 << 40
"""Beyond every position: the draws of whether there is a guess at all are others than those of its tokens."""

_GOES_ON = 1 << 50
"""And those of its length."""


class Guessing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often guesses are right."""

    chances: Annotated[tuple[_Share, ...], msgspec.Meta(min_length=1)]
    """By place in the guess: that its token is right, if those before it are. The last one holds for all places behind
    it."""
    drafting: _Share = 1.0
    """In what share of a stream's steps there is a guess at all."""
    goes_on: tuple[_Share, ...] = ()
    """By place in the guess, from the second on: that a guess is as long, if it came so far. Behind the last, and
    without any, it is always as long as is asked for."""
    tokens: int | None = None
    """Try so many in every step; None: as many as the control takes to pay."""

    def __post_init__(self) -> None:
        if self.tokens is not None and not 1 <= self.tokens <= MOST_TOKENS:
            raise InvalidParameter(
                f"speculation_tokens is {self.tokens}; it must be 1 to {MOST_TOKENS}.", "speculation_tokens"
            )

    def chance(self, place: int) -> float:
        return self.chances[min(place, len(self.chances) - 1)]

    @property
    def most_tokens(self) -> float:
        """That a step brings a stream on average, if it always has a guess, as long as there may be: the sum of
        Leviathan et al. 2023."""
        found = reached = 1.0
        for place in range(self.tokens or MOST_TOKENS):
            reached *= self.chance(place)
            found += reached
        return found

    @classmethod
    def parse(cls, speculation: str, tokens: int | None) -> Guessing | None:
        """Of `off`, a share of tokens that are right (`0.7`), or an acceptance profile (`FILE`, or `FILE:WORK` for one
        kind of work in it). Raises InvalidParameter and SettingsError."""
        if speculation == "off":
            if tokens is not None:
                raise InvalidParameter(
                    f"speculation_tokens is {tokens}, and speculation is off; give its acceptance, such as 0.7.",
                    "speculation_tokens",
                )
            return None
        try:
            share = float(speculation)
        except ValueError:
            return cls._of_profile(speculation, tokens)
        if not 0 <= share <= 1:
            raise InvalidParameter(
                f"speculation is {speculation}; the share of guessed tokens that are right is 0 to 1.",
                "speculation",
            )
        return cls(chances=(share,), tokens=tokens)

    @classmethod
    def _of_profile(cls, name: str, tokens: int | None) -> Guessing:
        path, work = Path(name), ""
        if not path.exists() and ":" in name:
            before, _, work = name.rpartition(":")
            path = Path(before)
        if not path.exists():
            raise InvalidParameter(
                f"speculation is {name!r}: neither off, nor a share of tokens such as 0.7, nor an acceptance profile's "
                "file.",
                "speculation",
            )
        works = [one for one in Profile.read(path).works if work in ("", one.work)]
        if not works:
            known = {one.work for one in Profile.read(path).works}
            raise InvalidParameter(
                f"{path} has no work {work!r}; {nearest(work, sorted(known))}", "speculation"
            )
        places = max(len(one.reached_at) for one in works)
        chances = []
        for place in range(places):
            reached = sum(one.reached_at[place] for one in works if place < len(one.reached_at))
            right = sum(one.accepted_at[place] for one in works if place < len(one.accepted_at))
            chances.append(right / reached if reached else 0.0)
        steps = sum(max(one.tokens - sum(one.accepted_at), 1) for one in works)
        drafting = sum(one.drafts for one in works) / max(steps, 1)
        try:
            return cls(chances=(*chances, 0.0), drafting=min(drafting, 1.0), tokens=tokens)
        except msgspec.ValidationError as error:
            raise SettingsError(f"{path} is no acceptance profile: {error}.") from None


class DrawnDrafter:
    """Guesses for nothing, as a look into the text does."""

    name = "drawn"
    priors: tuple[Prior, ...] = ModelDrafter.priors

    def __init__(self, guessing: Guessing) -> None:
        self._guessing = guessing

    def draft(self, texts: Sequence[Text], count: int) -> list[list[Guess]]:
        return [self._guesses(text, count) for text in texts]

    def ended(self, text: Text) -> None:
        """Nothing is kept of it."""

    def _guesses(self, text: Text, count: int) -> list[Guess]:
        seed, position, guessing = text.rule.seed, len(text.tokens), self._guessing
        if guessing.drafting < 1.0 and uniform(seed, _BEGINS + position) >= guessing.drafting:
            return []
        for place, share in enumerate(guessing.goes_on[: count - 1], start=1):
            if uniform(seed, _GOES_ON + MOST_TOKENS * position + place) >= share:
                count = place
                break
        tokens = []
        for place in range(count):
            right = uniform(seed, position + place) < guessing.chance(place)
            tokens.append(_token(text.rule, right=right))
            if not right:  # what comes behind a wrong one is never right
                tokens += [tokens[-1]] * (count - place - 1)
                break
        return [Guess(tuple(tokens), 0)]


class DrawnDraftModel(SimulatedBackend):
    """A smaller model, whose choice is as often that of the larger one."""

    def __init__(
        self, spec: ModelSpec, limits: Limits, pace: Pace, clock: ManualClock, guessing: Guessing
    ) -> None:
        super().__init__(spec, limits, pace, clock)
        self._guessing = guessing

    def _usual(self, rule: ChoiceRule) -> bool:
        return False

    def _chosen(self, plan: Plan, sample: SampleRow) -> TokenSample:
        rule = self._slots[sample.slot].rule
        position = plan.rows[sample.row].start + sample.offset + 1
        right = uniform(rule.seed, position) < self._guessing.chances[0]
        return TokenSample(_token(rule, right=right))


def speculator_of(
    guessing: Guessing, scheduler: Scheduler, draft: DrawnDraftModel | None, clock: Clock
) -> Speculator:
    """As the server makes it. `draft`: guesses come from a model, each step of which takes its time."""
    if draft is None:
        return Speculator(DrawnDrafter(guessing), scheduler, fixed=guessing.tokens)
    silent = DrawnDrafter(Guessing(chances=(0.0,), drafting=0.0))
    model = ModelDrafter(draft, draft.spec.vocab_size, clock)
    return Speculator(silent, scheduler, model=model, fixed=guessing.tokens)


def _token(rule: ChoiceRule, *, right: bool) -> int:
    """What the sequence answers, or a token that no answer has."""
    return answer_of(rule) if right else answer_of(rule) + CHILDREN
