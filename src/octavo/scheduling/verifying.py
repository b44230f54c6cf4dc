"""Guessed tokens in a step: which of those offered are tried, and what became of them. Guesses nothing itself.

A token is a function of its sequence's history alone, so a draft is right exactly when it equals the token that is
chosen where it stands. What follows a right one has been computed with it in one pass (Leviathan et al. 2023,
arXiv:2211.17192, for which a draft is right with a probability); what follows a wrong one is forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import NamedTuple

from octavo.scheduling.budget import StepBudget
from octavo.scheduling.inputs import Draft
from octavo.scheduling.order import Order
from octavo.scheduling.places import Places
from octavo.scheduling.sequence import Sequence
from octavo.scheduling.settings import Counters
from octavo.scheduling.writer import Advance, Flight

__all__ = ["Verified", "Verifier", "offers_of", "promising"]


def offers_of(drafts: Items[Draft]) -> dict[tuple[str, int], tuple[int, ...]]:
    """By request and child."""
    return {(one.request_id, one.child): one.tokens for one in drafts}


def promising(sequence: Sequence, drafts: Items[int]) -> int:
    """How many of the drafts, from the first on, are worth computing: not one that ends the sequence. That one is
    chosen or not, and nothing comes behind it. What a grammar forbids was cut off before they were offered, so that a
    log can be replayed without the grammar."""
    request = sequence.request
    for place, token in enumerate(drafts):
        if token in request.end_ids or token in request.stop_ids:  # too early, a mask forbids it
            return place
    return len(drafts)


class Verified(NamedTuple):
    """What became of a sequence's drafts."""

    sequence: Sequence
    drafts: int
    accepted: int


class Verifier:
    """One scheduler's drafts."""

    def __init__(self, places: Places, order: Order, counters: Counters) -> None:
        self._places = places
        self._order = order
        self._counters = counters
        self.offered: dict[tuple[str, int], tuple[int, ...]] = {}
        """For the present step, by request and child."""
        self._accepted: dict[Sequence, int] = {}
        self._verified: list[Verified] = []

    def take(
        self,
        sequence: Sequence,
        most: int,
        running: int,
        advances: dict[Sequence, Advance],
        budget: StepBudget,
    ) -> int:
        """Let a sequence that decodes try what was offered, `most` tokens at most, and nothing where the others that
        run need the memory. How many it tries."""
        request = sequence.request
        drafts = self.offered.get((request.id, sequence.child), ())
        drafts = drafts[: max(min(most, request.max_output - sequence.output_tokens - 1), 0)]
        drafts = drafts[: promising(sequence, drafts)]
        if (
            not drafts
            or request.params.beam_width
            or sequence.slot is None
            or sequence.pending
            or sequence.gap != 1
            or sequence.told != sequence.computed
            or not self.has_room(running)
        ):
            return 0
        growths = self._places.grow(sequence, sequence.computed + 1 + len(drafts))
        if growths is None:
            return 0
        advances[sequence] = Advance(1 + len(drafts), growths, drafts)
        budget.take(sequence, 1 + len(drafts), len(drafts))
        return len(drafts)

    def has_room(self, running: int) -> bool:
        """Is there memory for guesses, beside what so many running sequences will soon need?"""
        return all(pool.free > 2 * running for pool in self._places.pools)

    def accept(self, sequence: Sequence, position: int, draft: int) -> bool:
        """Is the token that was chosen for `position` behind `draft` the sequence's next one?"""
        if len(sequence.tokens) != position or sequence.tokens[-1] != draft:
            return False
        sequence.total += 1
        sequence.accepted += 1
        self._accepted[sequence] = self._accepted.get(sequence, 0) + 1
        if not self._order.plain:
            self._order.charge(sequence.request, 1)
        if sequence.told:  # else it was preempted meanwhile, and will be computed again
            sequence.computed += 1
            sequence.told += 1
            self._places.sharing.store(sequence, sequence.computed)
        return True

    def commit(self, flight: Flight) -> None:
        """All samples of a plan have been taken in."""
        choosers = {owner for owner, position, _ in flight.owners if position >= owner.prompt_tokens}
        self._counters.saved_steps += min([self._accepted.get(one, 0) for one in choosers])
        for sequence in flight.drafted:
            accepted = self._accepted.pop(sequence, 0)
            self._verified.append(Verified(sequence, sequence.drafted, accepted))
            self._counters.drafts += 1
            self._counters.draft_tokens += sequence.drafted
            self._counters.accepted_tokens += accepted
            sequence.drafted = 0
            if sequence.tables and not sequence.finished:
                self._places.shrink(sequence)

    def take_verified(self) -> list[Verified]:
        """Since the last call."""
        verified, self._verified = self._verified, []
        return verified
