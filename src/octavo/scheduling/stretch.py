"""Many equal steps at once: while all that run decode and nothing can happen between, a step is like the one before.

A simulation of hours lives on this. It knows what a step of the scheduler does, and does the same to the same state.
"""

from __future__ import annotations

from collections.abc import Sequence as Durations
from typing import TYPE_CHECKING

from octavo.backends.base import TokenSample
from octavo.scheduling.ends import output_of
from octavo.scheduling.sequence import Sequence
from octavo.timing.step_time import StepLoad

if TYPE_CHECKING:
    from octavo.scheduling.scheduler import Scheduler

__all__ = ["Stretch"]


class Stretch:
    """The next steps of a scheduler between two of its own, if each chooses `token` for every sequence."""

    def __init__(self, scheduler: Scheduler, token: int) -> None:
        self._scheduler = scheduler
        self._token = token
        self._running = list(scheduler.running)

    def most(self) -> int:
        """How many steps are certain to be equal if no message comes: no sequence ends, waits, begins, or finds no
        block. 0 where the next one is not."""
        scheduler, running = self._scheduler, self._running
        if (
            not running
            or len(running) > scheduler.config.step_tokens
            or len(scheduler.waiting)
            or not scheduler.settled
        ):
            return 0
        if scheduler.swap is not None:  # a step's plan may say what goes to disk, and here are no plans
            return 0
        most = scheduler.limits.max_model_len
        for sequence in running:
            request = sequence.request
            ends = self._token in request.end_ids or self._token in request.stop_ids or request.params.stop
            if (
                sequence.gap != 1
                or not sequence.output_tokens
                or ends
                or request.contest
                or sequence.slack_only
            ):
                return 0
            most = min(most, request.max_output - sequence.output_tokens - 1)
        low, high = 0, max(most, 0)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._finds_blocks(middle) else (low, middle - 1)
        return low

    def _finds_blocks(self, steps: int) -> bool:
        for group, pool in enumerate(self._scheduler.places.pools):
            needed = sum(
                one.tables[group].needed(one.computed, one.computed + steps) for one in self._running
            )
            if needed > pool.free:
                return False
        return True

    def advance(self, durations: Durations[float]) -> None:
        """As if a step for each duration, at most `most()`, were scheduled, computed in so many seconds and committed;
        but the outputs come together, and the last duration comes with the next inputs. O(steps) where no block begins
        or is filled."""
        steps = len(durations)
        if steps > self.most():
            raise ValueError(f"{steps} equal steps were asked for, and {self.most()} are certain")
        scheduler, order = self._scheduler, self._scheduler.order
        running = scheduler.running
        starts = {one: one.computed for one in running}
        size = scheduler.limits.block_size
        load = StepLoad(len(running), len(running), sum(starts.values()), 0)
        for step in range(steps):
            load = load._replace(kv_tokens=load.kv_tokens + len(running))
            if step:
                scheduler.lasted(durations[step - 1])
            if not order.plain:  # what is computed for a tenant moves it back
                running.sort(key=order.rank)
                for one in running:
                    order.charge(one.request, 1)
            looked = scheduler.looks_closely
            for one in running:
                if starts[one] + step >= one.writable:
                    one.computed = starts[one] + step
                    scheduler.places.grow(one, one.computed + 1)
                    looked = True
            if looked:
                for one in running:
                    one.computed = starts[one] + step + 1
                    self._learn(one, one.computed)
            scheduler.stepped(load, looked=looked)
            for one in running:
                if (starts[one] + step + 1) // size * size > one.stored:
                    self._learn(one, starts[one] + step + 2)
                    scheduler.places.sharing.store(one, starts[one] + step + 1)
        for one in running if steps else ():
            one.computed = one.told = starts[one] + steps
            self._learn(one, one.computed + 1)
            one.total = len(one.tokens)
            scheduler.tell(output_of(one, (TokenSample(self._token),) * steps))

    def _learn(self, sequence: Sequence, length: int) -> None:
        """It has `length` tokens now."""
        sequence.tokens.extend([self._token] * (length - len(sequence.tokens)))
