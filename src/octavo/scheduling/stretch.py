"""Many equal steps at once: while all that run decode and nothing can happen between, a step is like the one before.

A simulation of hours lives on this. It knows what a step of the scheduler does, and does the same to the same state.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from collections.abc import Sequence as Times
from itertools import groupby, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING

from octavo.backends.base import Samples, TokenSample
from octavo.scheduling.outputs import SequenceOutput
from octavo.scheduling.sequence import Sequence
from octavo.timing.step_time import StepLoad

if TYPE_CHECKING:
    from octavo.scheduling.scheduler import Scheduler

__all__ = ["Stretch"]

_BEGINS, _FILLS = range(2)
"""Of a block: it is taken before the step, and known to others after it."""


class Stretch:
    """The next steps of a scheduler between two of its own, if each chooses `token` for every sequence and no message
    comes. It is good until the scheduler does anything else."""

    def __init__(self, scheduler: Scheduler, token: int) -> None:
        self._scheduler = scheduler
        self._token = token
        self._running = list(scheduler.running)
        self.sequences = len(self._running)
        """How many decode."""
        self.kv_tokens = 0
        """Stored tokens that the first step reads; every other one reads a token more of each sequence."""
        self._left = 0
        """Steps after which the first sequence has all its tokens."""
        self._most = self._certain()

    def most(self) -> int:
        """How many steps are certain to be equal: no sequence begins or finds no block, and none ends but with the last
        of them. 0 where the next one is not."""
        return self._most

    @property
    def ends(self) -> bool:
        """Somebody ends with the last one of them."""
        return 0 < self._most == self._left

    def loads(self, steps: int) -> list[StepLoad]:
        """What each of the next steps has to do."""
        return [self._load(step) for step in range(steps)]

    def _load(self, step: int) -> StepLoad:
        count = self.sequences
        return StepLoad(count, count, self.kv_tokens + step * count, 0, count)

    def advance(self, times: Times[float]) -> None:
        """As if a step began at each of `times` but the last, when the last step has ended, at most `most()`; each was
        scheduled, computed and committed, but the outputs come together, and the last duration comes with the next
        inputs. O(steps + sequences) and what begins or fills a block."""
        steps = len(times) - 1
        if steps > self._most:
            raise ValueError(f"{steps} equal steps were asked for, and {self._most} are certain")
        if steps < 1:
            return
        scheduler = self._scheduler
        moves = _Moves(scheduler, self._running, times, self._token)
        durations = [end - start for start, end in pairwise(times)]
        at = 0
        while at < steps:
            if at:
                scheduler.lasted(durations[at - 1])
            if (
                not at or not scheduler.reporter.counts_in
            ):  # what has ended since the last step is not known yet
                moves.before(at, _FILLS)
                moves.computed(at + 1)
                scheduler.stepped(self._load(at))
                at += 1
            else:
                until = min(at + scheduler.reporter.counts_in, steps)
                moves.before(until, _BEGINS)
                if scheduler.config.times_steps:
                    for step in range(at, until - 1):
                        scheduler.step_time.observe(self._load(step), durations[step])
                scheduler.stepped_on(self._load(until - 1), moves.grown[at:until], durations[at : until - 1])
                at = until
        moves.end()
        self._tell((TokenSample(self._token),) * steps, ended=steps == self._left)
        if scheduler.kept and not scheduler.running:
            scheduler.end_batch()

    def _tell(self, samples: Samples, *, ended: bool) -> None:
        """Each has these tokens more. `ended`: it may be the last token of some."""
        scheduler, outbox, steps = self._scheduler, self._scheduler.outbox, len(samples)
        scheduler.counters.generation_tokens += steps * self.sequences
        for one in list(scheduler.running) if ended else scheduler.running:
            request = one.request
            one.told = one.computed
            one.total += steps
            if request.scores_prompt or (ended and one.output_tokens >= request.max_output):
                scheduler.tell(one, samples)
            else:  # nothing is held back where no string stops it
                outbox.append(SequenceOutput(request.id, one.child, samples, cached_tokens=one.cached_tokens))

    # ---- how far it is certain

    def _certain(self) -> int:
        scheduler, running, token = self._scheduler, self._running, self._token
        if not running or len(running) > scheduler.config.step_tokens or scheduler.in_flight():
            return 0
        if scheduler.swap is not None:  # a step's plan may say what goes to disk, and here are no plans
            return 0
        left, stored = scheduler.limits.max_model_len, 0
        for one in running:
            request, computed = one.request, one.computed
            outputs = one.total - one.prompt_tokens
            if (
                one.total - computed != 1
                or outputs < 1
                or one.writable < computed
                or not request.free
                or request.contest
                or token in request.end_ids
                or token in request.stop_ids
            ):
                return 0
            stored += computed
            if left > request.max_output - outputs:
                left = request.max_output - outputs
        if left <= 0 or not self._keeps_out():
            return 0
        self._left = left
        self.kv_tokens = stored + self.sequences
        if self._finds_blocks(left):
            return left
        low, high = 0, left
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._finds_blocks(middle) else (low, middle - 1)
        return low

    def _finds_blocks(self, steps: int) -> bool:
        size = self._scheduler.limits.block_size
        free = min([pool.free for pool in self._scheduler.places.pools])
        if self.sequences * (steps // size + 1) <= free:  # however full their last blocks are
            return True
        needed = 0
        for one in self._running:
            needed += max(-(-(one.computed + steps) // size) - one.writable // size, 0)
        return needed <= free

    def _keeps_out(self) -> bool:
        """Whoever waits is certain to wait until somebody ends.

        Slots become free with an end only, and so do blocks: what those that run take for their next tokens is
        promised to them, so that what the first one lacks never becomes less, unless it can begin with a block that is
        filled meanwhile; such a block ends with `token`.
        """
        scheduler, places = self._scheduler, self._scheduler.places
        if not len(scheduler.waiting) or scheduler.policy.batched:
            return True
        if not scheduler.order.plain:
            return False
        first = next(scheduler.waiting.ranked(False), None)
        if first is None or first.request.contest is not None:
            return False
        names = places.sharing.found(first)
        if names is None:
            return False
        lacks = any(places.lacking([first], names, self._running))
        if places.lacking_slots([first]) > 0 and not places.free_slots:
            return True
        end = (len(names) + 1) * scheduler.limits.block_size
        return lacks and (end > len(first.tokens) or first.tokens[end - 1] != self._token)


class _Moves:
    """What becomes of blocks within a stretch, each in the order in which steps would do it."""

    def __init__(
        self, scheduler: Scheduler, running: list[Sequence], times: Times[float], token: int
    ) -> None:
        self._scheduler = scheduler
        self._running = running
        self._times = times
        self._steps = len(times) - 1
        self._starts = [one.computed for one in running]
        self._charged = self._next = 0
        self.grown = [0] * self._steps
        """How many blocks were taken in each step."""
        self._events = sorted(self._all())
        for one in running:
            one.tokens.extend([token] * self._steps)

    def _all(self) -> Iterator[tuple[int, int, int]]:
        """In which step which block begins or is filled, by the place of its sequence."""
        size, names = self._scheduler.limits.block_size, self._scheduler.places.sharing.enabled
        steps = self._steps
        for place, one in enumerate(self._running):
            start = one.computed
            step = one.writable - start
            while step < steps:
                yield step, _BEGINS, place
                step += size
            if names:
                step = max(one.stored // size * size + size - start - 1, 0)
                while step < steps:
                    yield step, _FILLS, place
                    step = (start + step + 1) // size * size + size - start - 1

    def before(self, step: int, kind: int) -> None:
        """Do all that comes before what is of this kind in this step."""
        events, begin = self._events, self._next
        self._next = end = bisect_left(events, (step, kind), begin)
        if self._scheduler.order.plain:
            self._do_all(events[begin:end])
            return
        for (at, what), group in groupby(events[begin:end], key=itemgetter(0, 1)):
            self._do(at, what, [place for _, _, place in group])

    def computed(self, steps: int) -> None:
        """So many steps have begun."""
        for one, start in zip(self._running, self._starts, strict=True):
            one.computed = start + steps

    def end(self) -> None:
        """All steps have ended; those that run are in the order of the last one."""
        self.before(self._steps, _BEGINS)
        self.computed(self._steps)
        if not self._scheduler.order.plain:
            self._arrange(self._steps - 1)
            self._charge(self._steps)

    def _do_all(self, events: list[tuple[int, int, int]]) -> None:
        """Where nobody's place in the order changes: that of `running`."""
        running, starts, grown = self._running, self._starts, self.grown
        lengthen, store = self._scheduler.places.lengthen, self._scheduler.places.sharing.store
        for step, kind, place in events:
            if kind == _BEGINS:
                grown[step] += 1
                lengthen(running[place])
            else:
                store(running[place], starts[place] + step + 1)

    def _do(self, step: int, kind: int, places: list[int]) -> None:
        """One step's, for these sequences."""
        scheduler, running = self._scheduler, self._running
        self._arrange(step)
        if len(places) > 1:
            rank = {one: number for number, one in enumerate(scheduler.running)}
            places.sort(key=lambda place: rank[running[place]])
        if kind == _BEGINS:
            self.grown[step] = len(places)
            for place in places:
                scheduler.places.lengthen(running[place])
        else:
            for place in places:
                scheduler.places.sharing.store(running[place], self._starts[place] + step + 1)

    def _arrange(self, step: int) -> None:
        """Into the order that they have in this step: what was computed for a tenant has moved it back."""
        order = self._scheduler.order
        order.now_s = self._times[step]
        self._charge(step)
        self._scheduler.running.sort(key=order.rank)

    def _charge(self, steps: int) -> None:
        for one in self._running if steps > self._charged else ():
            self._scheduler.order.charge(one.request, steps - self._charged)
        self._charged = steps
