"""Writes down what an engine's steps did, from its plans and its scheduler's counts. Decides and changes nothing."""

from __future__ import annotations

import msgspec

from octavo.backends.base import Plan, PlanRow
from octavo.scheduling.scheduler import Scheduler
from octavo.scheduling.sequence import Sequence
from octavo.telemetry.timeline import Admission, Share, Step, Timeline, Work
from octavo.timing.clock import microseconds

__all__ = ["Recorder"]


class Recorder:
    """One engine's. The engine calls `planned` when a step is decided, and `ended` when its tokens were taken in."""

    def __init__(
        self, timeline: Timeline, *, replica: int = 0, from_us: int = 0, until_us: int | None = None
    ) -> None:
        """Of steps that begin at `from_us` or later, and before `until_us`."""
        self._timeline = timeline
        self._replica = replica
        self._from_us = from_us
        self._until_us = until_us
        self._open: dict[int, tuple[Step, list[Sequence]]] = {}
        """Steps on their way, by their numbers, and who is in each."""
        self._last = -1
        """The number of the step before, if that was planned one by one."""
        self._running: set[Sequence] = set()
        """Who ran in it."""
        self._evicted = 0
        """Blocks until then."""

    def watches(self, begin_s: float, end_s: float) -> bool:
        """Steps of this time are to be written down, each by itself."""
        until_us = self._until_us
        return microseconds(end_s) >= self._from_us and (until_us is None or microseconds(begin_s) < until_us)

    def planned(self, scheduler: Scheduler, plan: Plan, at_s: float) -> None:
        """Right behind `scheduler.schedule`, whose inputs were of this time."""
        if not plan.rows or not self.watches(at_s, at_s):
            return
        follows, self._last = plan.step == self._last + 1, plan.step
        evicted = sum(pool.reused for pool in scheduler.places.pools)
        before, self._evicted = self._evicted if follows else evicted, evicted
        by_slot = {one.slot: one for one in scheduler.running}
        rows = [(by_slot[row.slot], row) for row in plan.rows]
        opened = [by_slot[one.slot] for one in plan.opens]
        if follows:
            lost = [one for one in self._running if one.slot is None and not one.finished]
        else:
            lost = [one for one in scheduler.waiting if one.preempted]
        self._running = set(scheduler.running)
        pools, memory = scheduler.places.pools, scheduler.report().now
        step = Step(
            number=plan.step,
            replica=self._replica,
            begin_us=microseconds(at_s),
            end_us=microseconds(at_s),
            tokens=plan.tokens,
            shares=tuple([_share(sequence, row) for sequence, row in rows]),
            admitted=tuple([_admission(one) for one in opened]),
            preempted=tuple(sorted([_name(one) for one in lost])),
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            blocks_used=sum(pool.used for pool in pools),
            blocks_free=sum(pool.free for pool in pools),
            evicted_blocks=evicted - before,
            internal_tokens=memory.internal,
            external_tokens=memory.external,
            duplicate_tokens=memory.duplicate,
            shared_tokens=memory.shared,
        )
        self._open[plan.step] = step, list(dict.fromkeys([*(one for one, _ in rows), *opened]))

    def ended(self, step: int, at_s: float) -> None:
        """Right behind the commit of the plan with this number."""
        if (found := self._open.pop(step, None)) is None:
            return
        planned, sequences = found
        ended = tuple([_name(one) for one in sequences if one.finished])
        self._timeline.add(msgspec.structs.replace(planned, end_us=microseconds(at_s), ended=ended))


def _name(sequence: Sequence) -> tuple[str, int]:
    return sequence.request.id, sequence.child


def _share(sequence: Sequence, row: PlanRow) -> Share:
    """Who has guesses in the plan has only them and his next token; who computes one token behind his prompt, that."""
    work: Work = "prefill"
    if sequence.drafted:
        work = "draft"
    elif row.count == 1 and row.start >= sequence.prompt_tokens:
        work = "decode"
    return Share(*_name(sequence), work, row.start, row.count, sequence.drafted)


def _admission(sequence: Sequence) -> Admission:
    arrived_us = microseconds(sequence.request.add.arrival_s)
    return Admission(*_name(sequence), arrived_us, sequence.cached_tokens)
