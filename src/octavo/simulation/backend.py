"""A backend without tensors: it says how long each plan takes, and moves the clock by it. Knows no workload.

What it chooses ends no answer, so that one is as long as its `max_tokens` says: always the same token where the choice
is greedy, another one for each child where it is by chance, and for beams tokens with drawn probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from octavo.backends.base import ChoiceRule, Handle, Limits, Plan, PlanError, SampleRow, Samples, TokenSample
from octavo.engine.load import load_of
from octavo.models.spec import ModelSpec
from octavo.simulation.draws import CHILDREN, candidates
from octavo.simulation.pace import Pace, coldness_of
from octavo.timing.clock import ManualClock

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["TOKEN", "SimulatedBackend", "answer_of", "load_of"]

TOKEN = 0
"""What every greedy answer consists of."""

_SAMPLE = TokenSample(TOKEN)


def answer_of(rule: ChoiceRule) -> int:
    """Each token of a sequence that is chosen by this rule."""
    return TOKEN + rule.seed % CHILDREN if rule.temperature else TOKEN


def _usual(sample: SampleRow) -> TokenSample:
    return _SAMPLE if sample.target < 0 else TokenSample(sample.target, logprob=0.0)


class _Flight(NamedTuple):
    """A plan, and what it will have chosen."""

    plan: Plan
    samples: Samples


class _Slot:
    """A sequence whose choice is not the usual one."""

    __slots__ = ("last", "rule")

    def __init__(self, rule: ChoiceRule, last: int) -> None:
        self.rule = rule
        self.last = last
        """The newest token that is known of it: with its position, all that its candidates depend on."""


class SimulatedBackend:
    """Computes nothing, in the time that `pace` says."""

    name = "simulated"
    invariant = True
    arithmetic_id = "simulated"

    def __init__(
        self, spec: ModelSpec, limits: Limits, pace: Pace, clock: ManualClock, *, receives: bool = False
    ) -> None:
        """`receives`: a sequence that begins with a prompt and one token has the prompt's K and V from elsewhere. One
        that begins with more had to give up its memory, and computes it again."""
        self.spec = spec
        self.limits = limits
        self.pace = pace
        self.candidates: Callable[[int, int, int, int], tuple[tuple[int, float], ...]] = candidates
        """Of beams; a test may have its own."""
        self.coldness = coldness_of(pace)
        """What steps leave behind for the next ones."""
        self._clock = clock
        self._receives = receives
        self._received: dict[int, int] = {}
        """Of each slot: how many tokens of its beginning."""
        self._slots: dict[int, _Slot] = {}
        """Only those whose choice is not the usual one."""

    def launch(self, plan: Plan) -> Handle:
        for one in plan.opens:
            if self._receives:
                known = len(one.history) - one.rule.prompt_tokens
                self._received[one.slot] = one.rule.prompt_tokens if known == 1 else 0
            if self._usual(one.rule):
                self._slots.pop(one.slot, None)
            else:
                self._slots[one.slot] = _Slot(one.rule, one.history[-1])
        if not self._slots:
            return _Flight(plan, tuple(map(_usual, plan.samples)))
        for row in plan.rows:
            if row.tokens and (slot := self._slots.get(row.slot)) is not None:
                slot.last = row.tokens[-1]
        return _Flight(plan, tuple(self._chosen(plan, sample) for sample in plan.samples))

    def sample(self, handle: Handle, masks: Sequence[NDArray[np.int32] | None] | None = None) -> None:
        """The choice takes no time of its own: it is in the pace, by samples."""

    def collect(self, handle: Handle) -> Samples:
        assert isinstance(handle, _Flight)
        load = load_of(handle.plan, self._received)
        if load.tokens:  # else K and V came in, and nothing was computed
            seconds = self.pace.seconds(load)
            if self.coldness is not None:
                seconds += self.coldness.seconds if seconds else 0.0
                self.coldness.after(load)
            self._clock.advance(seconds)
        return handle.samples

    def _usual(self, rule: ChoiceRule) -> bool:
        """Nothing of the rule has to be known."""
        return not rule.temperature and rule.logprobs < 0

    def _chosen(self, plan: Plan, sample: SampleRow) -> TokenSample:
        slot = self._slots.get(sample.slot)
        if slot is None or sample.target >= 0:
            return _usual(sample)
        rule = slot.rule
        if rule.logprobs <= 0:
            return TokenSample(answer_of(rule), logprob=None if rule.logprobs < 0 else 0.0)
        position = plan.rows[sample.row].start + sample.offset + 1
        top = self.candidates(rule.seed, position, slot.last, rule.logprobs)
        return TokenSample(*top[0], top)

    def read_block(self, group: int, block: int) -> bytes:
        raise PlanError("A simulated block has no bytes; a disk tier is not simulated.")

    def write_block(self, group: int, block: int, data: bytes) -> None:
        raise PlanError("A simulated block has no bytes; a disk tier is not simulated.")

    def close(self) -> None:
        """Nothing is held."""
