"""One engine on a virtual clock: the scheduler that serves, and nothing that computes. Knows no workload."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from octavo.engine.calibration import measure
from octavo.engine.engine import Engine
from octavo.engine.messages import Add, EngineInfo, Stats
from octavo.engine.recorder import Recorder
from octavo.models.program import Program
from octavo.models.spec import KVGroup, ModelSpec, Rope
from octavo.scheduling.outputs import SequenceOutput
from octavo.scheduling.scheduler import Scheduler, SchedulerConfig
from octavo.scheduling.stretch import Stretch
from octavo.simulation.backend import TOKEN, SimulatedBackend
from octavo.simulation.guessing import DrawnDraftModel, Guessing, speculator_of
from octavo.simulation.pace import Pace
from octavo.text.vocabulary import Vocabulary
from octavo.timing.clock import ManualClock, microseconds
from octavo.timing.step_time import StepLoad

__all__ = ["VOCABULARY", "Progress", "Replica"]

_LEAST_STRETCH = 3
"""Equal steps below which it is no cheaper to take them together."""
VOCABULARY = 1 << 31
"""Tokens that a prompt's ids are taken from: see simulation/prompts.py."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What one step, or several equal ones, brought."""

    items: tuple[SequenceOutput, ...]
    ends_s: tuple[float, ...]
    """When each step ended. With several, each item has one token of every one of them."""


class Replica:
    """An engine as the server has it, but that its clock is `clock` and its steps take what `pace` says."""

    def __init__(
        self,
        config: SchedulerConfig,
        pace: Pace,
        clock: ManualClock,
        *,
        fast: bool = True,
        guessing: Guessing | None = None,
        draft_pace: Pace | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """`fast`: take equal steps together where nothing can happen between; what comes out is the same. `guessing`:
        speculate, with guesses so good; with a `draft_pace` they are a draft model's, whose steps take so long.
        `recorder`: gets each step that it watches, one by one."""
        self.clock = clock
        self._pace = pace
        self._recorder = recorder
        self.guesses = guessing is not None
        self._fast = fast and guessing is None  # the control of guesses learns from each step
        spec = _spec(config)
        if config.targets.between_s(None, in_first_sentence=True) is not None and not config.measured:
            alone = ManualClock()  # as a server measures steps before it serves
            timed = measure(SimulatedBackend(spec, config.limits, pace, alone), config.kv_groups, alone)
            config = msgspec.structs.replace(config, measured=timed)
        self.scheduler = Scheduler(config, Vocabulary([b"\0"]))
        self.scheduler.capacity = self.capacity = config.capacity(VOCABULARY)
        """What a request may ask for, as the server checks it at its edge."""
        info = EngineInfo(
            model=spec.name,
            backend=SimulatedBackend.name,
            invariant=True,
            arithmetic_id=SimulatedBackend.arithmetic_id,
            capacity=self.capacity,
            num_blocks=config.limits.num_blocks,
            block_size=config.limits.block_size,
            block_bytes=0,
            max_step_tokens=config.limits.max_step_tokens,
            kv_dtype="bf16",
            threads=1,
            pid=0,
        )
        backend = SimulatedBackend(spec, config.limits, pace, clock)
        speculator = None
        if guessing is not None:
            draft = None
            if draft_pace is not None:
                draft = DrawnDraftModel(spec, config.limits, draft_pace, clock, guessing)
            speculator = speculator_of(guessing, self.scheduler, draft, clock)
        self.engine = Engine(
            self.scheduler, backend, info, clock=clock, speculator=speculator, recorder=recorder
        )
        self.busy_s = 0.0
        """In steps, so far."""
        self._new = False
        """Something was added that no step has seen."""

    def add(self, add: Add) -> None:
        self._new = True
        if add.params.n > 1:  # then what is chosen differs, and a stretch knows one token only
            self._fast = False
        self.engine.add(add)

    @property
    def idle(self) -> bool:
        return self.engine.idle

    @property
    def stats(self) -> Stats:
        return self.engine.stats()

    def advance(self, until_us: int | None) -> Progress:
        """The next step; or several, of which each but the last begins and ends before `until_us`, when something comes
        from outside. A step that has begun goes on over that moment, as it does on a machine."""
        if self._fast and not self._new and (progress := self._equal_steps(until_us)):
            return progress
        self._new = False
        began_s = self.clock.now_s()
        items = self.engine.step().items
        self.busy_s += self.clock.now_s() - began_s
        return Progress(items, (self.clock.now_s(),))

    def _equal_steps(self, until_us: int | None) -> Progress | None:
        stretch = Stretch(self.scheduler, TOKEN)
        most = stretch.most()
        if most < _LEAST_STRETCH:
            return None
        times = [self.clock.now_s()]
        for seconds in self._durations(most):
            if until_us is not None and microseconds(times[-1]) >= until_us:
                break
            times.append(times[-1] + seconds)
        if len(times) <= _LEAST_STRETCH or self._watched(times[0], times[-1]):
            return None
        self.clock.advance_to(times[-1])
        durations = [end - start for start, end in pairwise(times)]
        for seconds in durations:  # in the order of single steps, so that the sum is the same
            self.busy_s += seconds
        return Progress(self.engine.stretch(stretch, durations), tuple(times[1:]))

    def _watched(self, begin_s: float, end_s: float) -> bool:
        """Somebody wants to see each step of this time."""
        return self._recorder is not None and self._recorder.watches(begin_s, end_s)

    def _durations(self, steps: int) -> Iterator[float]:
        running = self.scheduler.running
        kv_tokens = sum(one.computed for one in running)
        for _ in range(steps):
            kv_tokens += len(running)
            yield self._pace.seconds(StepLoad(len(running), len(running), kv_tokens, 0))


def _spec(config: SchedulerConfig) -> ModelSpec:
    """A model of which only the groups of its KV memory are known."""
    return ModelSpec(
        name="simulated",
        architecture="simulated",
        vocab_size=VOCABULARY,
        hidden=1,
        layers=config.kv_groups,
        heads=1,
        kv_heads=1,
        head_dim=1,
        ffn=1,
        context_tokens=config.limits.max_model_len,
        bos_id=None,
        eos_ids=config.end_ids,
        add_bos=False,
        chat_template=None,
        rope=Rope(theta=10000.0, dim=1, interleaved=False),
        kv_groups=tuple(KVGroup((layer,), 1, 1) for layer in range(config.kv_groups)),
        program=Program((), (), ()),
        weights_hash="",
    )
