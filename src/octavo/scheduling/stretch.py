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
        if most > 0 and self._finds_blocks(most):
            return most
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
        running = self._running
        starts = [one.computed for one in running]
        begins, fills = _Calendar(), _Calendar()
        for place, one in enumerate(running):
            begins.put(max(one.writable - starts[place], 0), place)
            fills.put(self._filled(one, starts[place]), place)
        load = StepLoad(len(running), len(running), sum(starts), 0)
        for step in range(steps):
            load = load._replace(kv_tokens=load.kv_tokens + len(running))
            if step:
                scheduler.lasted(durations[step - 1])
            if not order.plain:  # what is computed for a tenant moves it back
                scheduler.running.sort(key=order.rank)
                for one in scheduler.running:
                    order.charge(one.request, 1)
            looked = scheduler.looks_closely
            for place in begins.take(step, scheduler.running, running):
                one = running[place]
                one.computed = starts[place] + step
                scheduler.places.grow(one, one.computed + 1)
                begins.put(max(one.writable - starts[place], step + 1), place)
                looked = True
            if looked:
                for one, start in zip(running, starts, strict=True):
                    one.computed = start + step + 1
                    self._learn(one, one.computed)
            scheduler.stepped(load, looked=looked)
            for place in fills.take(step, scheduler.running, running):
                one = running[place]
                self._learn(one, starts[place] + step + 2)
                scheduler.places.sharing.store(one, starts[place] + step + 1)
                fills.put(max(self._filled(one, starts[place]), step + 1), place)
        for one, start in zip(running, starts, strict=True) if steps else ():
            one.computed = one.told = start + steps
            self._learn(one, one.computed + 1)
            one.total = len(one.tokens)
            scheduler.tell(output_of(one, (TokenSample(self._token),) * steps))

    def _filled(self, sequence: Sequence, start: int) -> int:
        """The step after which a block more of it is whole than was stored."""
        size = self._scheduler.limits.block_size
        return max(sequence.stored // size * size + size - start - 1, 0)

    def _learn(self, sequence: Sequence, length: int) -> None:
        """It has `length` tokens now."""
        sequence.tokens.extend([self._token] * (length - len(sequence.tokens)))


class _Calendar:
    """What happens to whom in which step: only those are looked at."""

    def __init__(self) -> None:
        self._places: dict[int, list[int]] = {}

    def put(self, step: int, place: int) -> None:
        self._places.setdefault(step, []).append(place)

    def take(self, step: int, order: list[Sequence], running: list[Sequence]) -> list[int]:
        """Of this step, in the order in which they run in it."""
        places = self._places.pop(step, [])
        if len(places) > 1:
            rank = {one: number for number, one in enumerate(order)}
            places.sort(key=lambda place: rank[running[place]])
        return places
