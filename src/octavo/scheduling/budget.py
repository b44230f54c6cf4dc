"""How much a step may take on: a number of tokens, or what a target for its length leaves. Knows no memory."""

from __future__ import annotations

from octavo.scheduling.order import Order
from octavo.scheduling.policies import Policy
from octavo.scheduling.sequence import Sequence
from octavo.scheduling.settings import SchedulerConfig
from octavo.timing.step_time import StepLoad, StepTime

__all__ = ["StepBudget"]

_LEAST_CHUNK = 16
"""Tokens that the first prompt gets in any step, so that decodes that leave no time cannot keep it out for ever."""
_UNKNOWN_CHUNK = 64
"""Of prompts in a step with a target, before any step was measured."""


class StepBudget:
    """What is left of one step while it is being filled."""

    def __init__(
        self,
        config: SchedulerConfig,
        policy: Policy,
        step_time: StepTime,
        order: Order,
        *,
        spent_s: float = 0.0,
    ) -> None:
        """`spent_s`: how much of the step's time is over."""
        self.left = config.step_tokens
        """Tokens; less than none after a whole prompt that was longer."""
        self._most = config.limits.max_step_tokens
        """For a whole prompt that is longer than a step should be."""
        self._spent_s = spent_s
        self._policy = policy
        self._step_time = step_time
        self._order = order
        self._targets: dict[tuple[bool, int], float] = {}
        """How long the step may be, for those of each class that decode in it; a target binds what is not earlier."""
        self.prompt_tokens = 0
        """Given to sequences that do not decode."""
        self._decodes = self._kv_tokens = 0
        self._prompts = StepLoad()

    @property
    def load(self) -> StepLoad:
        """Of everything that was given."""
        prompts, decodes = self._prompts, self._decodes
        return StepLoad(
            prompts.tokens + decodes,
            prompts.samples + decodes,
            prompts.kv_tokens + self._kv_tokens,
            prompts.pairs,
            prompts.sequences + decodes,
        )

    def room(self, sequence: Sequence) -> int:
        """How many tokens this sequence may compute in the step, now."""
        gap = sequence.gap
        if gap == 1 and not sequence.slack_only:
            return 1 if self.left > 0 else 0
        if not self._policy.chunked and gap > 1:
            alone = not self.prompt_tokens and self.load.tokens + gap <= self._most
            return gap if gap <= self.left or alone else 0
        wanted = max(min(gap, self.left), 0)
        target_s = self._target_s(sequence) if self._targets and wanted else None
        if target_s is None:
            return wanted
        if self._step_time.known:
            fits = self._step_time.most_tokens(self.load, sequence.computed, wanted, target_s)
        else:
            fits = min(wanted, max(_UNKNOWN_CHUNK - self.prompt_tokens, 0))
        if not self.prompt_tokens and not sequence.slack_only:
            fits = max(fits, min(wanted, _LEAST_CHUNK))
        return fits

    def take(self, sequence: Sequence, count: int, drafts: int = 0) -> None:
        """The sequence computes `count` tokens, the last `drafts` of them guesses. One that decodes brings its target
        for the step along."""
        self._count(sequence, count, 1, drafts)
        target_s = sequence.between_s
        if target_s is not None and sequence.output_tokens:
            own = self._class_of(sequence)
            self._targets[own] = min(target_s, self._targets.get(own, target_s))

    def _target_s(self, sequence: Sequence) -> float | None:
        own = self._class_of(sequence)
        least = min((seconds for other, seconds in self._targets.items() if other <= own), default=None)
        return None if least is None else least - self._spent_s

    def _class_of(self, sequence: Sequence) -> tuple[bool, int]:
        return (False, 0) if self._order.plain else self._order.priority(sequence.request)

    def give_back(self, sequence: Sequence, count: int, drafts: int = 0) -> None:
        """The sequence was preempted: the `count` tokens that it had taken are left again."""
        self._count(sequence, count, -1, drafts)

    def _count(self, sequence: Sequence, count: int, sign: int, drafts: int) -> None:
        self.left -= sign * count
        if drafts:  # each of them is chosen behind, and reads what is stored with the others
            own = StepLoad().with_chunk(sequence.computed, count, count)
            self._prompts = StepLoad(*(a + sign * b for a, b in zip(self._prompts, own, strict=True)))
            return
        if sequence.output_tokens and count == 1:
            self._decodes += sign
            self._kv_tokens += sign * (sequence.computed + 1)
            return
        self.prompt_tokens += sign * count
        own = StepLoad().with_chunk(sequence.computed, count, int(count == sequence.gap))
        self._prompts = StepLoad(*(a + sign * b for a, b in zip(self._prompts, own, strict=True)))
