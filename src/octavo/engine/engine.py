"""The step: schedule, launch, sample, collect, commit. Knows neither tensors nor text, HTTP nor processes."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence as Times

from octavo.backends.base import Backend, Handle, Plan
from octavo.engine.carrier import Carrier
from octavo.engine.guides import Guides, told
from octavo.engine.heartbeat import Heartbeat
from octavo.engine.load import load_of
from octavo.engine.messages import Abort, Add, EngineInfo, Outputs, Stats, StepSeen
from octavo.engine.recorder import Recorder
from octavo.engine.steplog import StepLog
from octavo.engine.watchdog import Watchdog
from octavo.memory.accounting import Report
from octavo.scheduling.inputs import Draft, Inputs
from octavo.scheduling.outputs import SequenceOutput
from octavo.scheduling.scheduler import Scheduler
from octavo.scheduling.stretch import Stretch
from octavo.speculation.speculator import Speculator
from octavo.timing.clock import Clock, WallClock

__all__ = ["Engine"]

_logger = logging.getLogger(__name__)

EMPTY_STEPS = 1000
"""In a row, with requests that wait: a fault of the scheduler's, and nobody would ever be answered."""
REPORT_S = 1.0
"""Between two reports of a busy engine."""


class Engine:
    """One model being served: a scheduler that decides, a backend that computes.

    `depth` plans may fly while the next is decided: 0 where the backend computes at once, 1 where it runs behind.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        backend: Backend,
        info: EngineInfo,
        *,
        clock: Clock,
        depth: int = 0,
        log: StepLog | None = None,
        carrier: Carrier | None = None,
        speculator: Speculator | None = None,
        guides: Guides | None = None,
        heartbeat: Heartbeat | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.info = info
        self._scheduler = scheduler
        self.backend = backend
        self.clock = clock
        self._depth = depth
        self._log = log
        self._recorder = recorder
        self._carrier = carrier
        self._speculator = speculator
        self.guides = guides or Guides(scheduler.vocabulary, scheduler.config.end_ids)
        self.heartbeat = heartbeat or Heartbeat()
        self._told: list[SequenceOutput] = []
        """To requests that never entered."""
        self._inbox: list[Add | Abort] = []
        self._flying: deque[tuple[Plan, Handle]] = deque()
        self._duration_s = 0.0
        self._tokens = 0
        self._report_due_s = 0.0
        self._plan = Plan(0)
        self._empty_steps = 0
        self._watchdog = Watchdog(clock, self._describe) if isinstance(clock, WallClock) else None
        self._stepping = False
        self.watched = False
        """Outputs tell what each step computed, and when."""

    def add(self, add: Add) -> None:
        """A request enters at the next step, or the first one after its grammar is compiled. One that cannot be served
        comes back as an "error" output."""
        if add.params.grammar is None:
            self._inbox.append(add)
        elif add.request_id in self.guides.compiling:
            self.refuse(add.request_id, f"request id {add.request_id!r} is in use; choose another.")
        else:
            self.guides.enter(add)

    def refuse(self, request_id: str, error: str) -> None:
        """Tell the next step's readers that this request cannot be."""
        self._told.append(SequenceOutput(request_id, 0, finish_reason="error", error=error, refused=True))

    def abort(self, request_id: str) -> None:
        """A request leaves at the next step, and its blocks with it."""
        waiting = self.guides.leave(request_id)
        if waiting is None:
            self._inbox.append(Abort(request_id))
        else:
            self._told += told(waiting, "abort")

    @property
    def idle(self) -> bool:
        """A step would do nothing."""
        return not (self._inbox or self._told or self.guides.compiling) and self._scheduler.idle

    def step(self) -> Outputs:
        """Advance every sequence that the plan names, and tell what became of it."""
        self._stepping = True
        self.heartbeat.begin()
        started_s = self.clock.now_s()
        news = self._carrier.news() if self._carrier else None
        drafts: tuple[Draft, ...] = ()
        drafting_s = 0.0
        if self._speculator:
            drafts = self._speculator.propose()
            drafting_s = self.clock.now_s() - started_s
        if self.guides.compiling:
            compiled, refused = self.guides.take()
            self._inbox += compiled
            self._told += refused
        inputs = Inputs(started_s, tuple(self._inbox), self._duration_s, news, drafts, drafting_s)
        self._inbox.clear()
        plan = self._scheduler.schedule(inputs)
        if self._log:
            self._log.scheduled(inputs, plan)
        if self._recorder:
            self._recorder.planned(self._scheduler, plan, started_s)
        self._plan = plan
        expected_s = self._scheduler.expected_s
        self.heartbeat.planned(self._scheduler.in_flight(), expected_s)
        if self._watchdog is not None:
            self._watchdog.begin(expected_s)
        if self._carrier:
            self._carrier.carry(plan)
        if plan.rows:
            handle = self.backend.launch(plan)
            self.backend.sample(
                handle, self.guides.masks(self._scheduler.owners_of(plan)) if self.guides.guided else None
            )
            self._flying.append((plan, handle))
            self._empty_steps = 0
        elif not self._flying and not (self._carrier and self._carrier.rest()) and not self.guides.rest():
            self._look_for_progress()
        if len(self._flying) > self._depth or (self._flying and not plan.rows):
            oldest, handle = self._flying.popleft()
            samples = self.backend.collect(handle)
            if self._log:
                self._log.committed(oldest.step, samples)
            self._scheduler.commit(oldest, samples)
            if self._recorder:
                self._recorder.ended(oldest.step, self.clock.now_s())
            if self._speculator:
                self._speculator.verified(self._scheduler.verifier.take_verified())
        if self._watchdog is not None:
            self._watchdog.done()
        ended_s = self.clock.now_s()
        self._duration_s = ended_s - started_s
        self._tokens = plan.tokens
        self._stepping = False
        self.heartbeat.done()
        outputs = self._scheduler.take_outputs()
        if self.guides.guided and any(output.finish_reason for output in outputs):
            self.guides.forget(self._scheduler.knows)
        if self._told:
            outputs, self._told = (*self._told, *outputs), []
        seen = StepSeen(started_s, ended_s, load_of(plan), self.idle) if self.watched and plan.rows else None
        return Outputs(outputs, self.stats(), self._due_report(started_s), seen)

    def stretch(self, stretch: Stretch, times: Times[float]) -> tuple[SequenceOutput, ...]:
        """The next steps at once, on a clock that has been moved over them: see `Stretch.advance`."""
        self._scheduler.lasted(self._duration_s)
        stretch.advance(times)
        self._duration_s = times[-1] - times[-2]
        return self._scheduler.take_outputs()

    def _look_for_progress(self) -> None:
        """Nothing to compute and nothing in flight: that may happen at times, but not again and again."""
        held = self._scheduler.running or len(self._scheduler.waiting)
        self._empty_steps = self._empty_steps + 1 if held else 0
        if self._empty_steps >= EMPTY_STEPS:
            self._empty_steps = 0
            _logger.error("no sequence can run, and none of them will: %s", self._scheduler.give_up())

    def _describe(self) -> str:
        """The step that runs, for the watchdog."""
        plan = self._plan
        names = self.heartbeat.names or []
        return (
            f"step {plan.step}, {plan.tokens} tokens of {len(plan.rows)} sequences, in layer {self.heartbeat.layer}; "
            f"requests {', '.join(names[:8])}{' …' if len(names) > 8 else ''}"
        )

    def report(self) -> Report:
        """What the KV memory was good for, since the start."""
        return self._scheduler.report()

    def _due_report(self, now_s: float) -> Report | None:
        if now_s < self._report_due_s and not self.idle:
            return None
        self._report_due_s = now_s + REPORT_S
        return self.report()

    def stats(self) -> Stats:
        """Counters and gauges as of the last step."""
        scheduler = self._scheduler
        counters = scheduler.counters
        return Stats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            blocks_total=sum(pool.total for pool in scheduler.places.pools),
            blocks_used=sum(pool.used for pool in scheduler.places.pools),
            steps=counters.steps,
            step_duration_s=self._duration_s,
            step_tokens=self._tokens,
            preemptions=counters.preemptions,
            prompt_tokens=counters.prompt_tokens,
            generation_tokens=counters.generation_tokens,
            prefix_queried_tokens=counters.prefix_queried_tokens,
            prefix_hit_tokens=counters.prefix_hit_tokens,
            disk_bytes=self._carrier.used_bytes if self._carrier else 0,
            disk_hit_tokens=scheduler.swap.hit_tokens if scheduler.swap else 0,
            drafts=counters.drafts,
            draft_tokens=counters.draft_tokens,
            accepted_tokens=counters.accepted_tokens,
            accepted_at=tuple(self._speculator.accepted_at) if self._speculator else (),
            saved_steps=counters.saved_steps,
            reached_at=tuple(self._speculator.reached_at) if self._speculator else (),
        )

    def check(self) -> None:
        """Prove that no block and no slot leaked. Raises AssertionError."""
        self._scheduler.check()
        if self._speculator:
            self._speculator.check()

    def close(self) -> None:
        """Finish the disk cache and the log, free the backend's threads and memory. Calling it twice is harmless."""
        if self._watchdog is not None:
            self._watchdog.close()
        if self._carrier:
            # A step that failed may have left names on blocks that were not written: nothing of them goes to disk.
            swap = self._scheduler.swap
            self._carrier.close([] if self._stepping or swap is None else swap.unsaved())
            self._carrier = None
        if self._speculator:
            self._speculator.close()
        self.guides.close()
        self.backend.close()
        if self._log:
            self._log.close()
            self._log = None
