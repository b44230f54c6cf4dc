"""One engine on a virtual clock: the scheduler that serves, and nothing that computes. Knows no workload."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import add

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
from octavo.simulation.calibrated import Watched
from octavo.simulation.guessing import DrawnDraftModel, Guessing, speculator_of
from octavo.simulation.pace import Pace, decodes_of
from octavo.text.vocabulary import Vocabulary
from octavo.timing.clock import ManualClock, microseconds

__all__ = ["VOCABULARY", "Progress", "Replica"]

_FARTHEST = 32
"""Equal steps that are looked ahead: what comes in between makes the look useless."""
VOCABULARY = 1 << 31
"""Tokens that a prompt's ids are taken from: see simulation/prompts.py."""


class Progress(msgspec.Struct, frozen=True):
    """What one step, or several equal ones, brought."""

    items: tuple[SequenceOutput, ...]
    ends_s: tuple[float, ...]
    """When each step ended. With several, each item has one token of every one of them."""
    ends_us: array[int]
    """The same in whole microseconds [µs, int64], with those of all steps of this replica before and after them."""
    first: int
    """The place in it of the first of these steps."""
    place: int
    """Of the replica in its cluster; -1 for none."""

    @classmethod
    def told(cls, items: tuple[SequenceOutput, ...], at_us: int) -> Progress:
        """Of no step."""
        return cls(items, (at_us / 1e6,), array("q", (at_us,)), 0, -1)


@dataclass(frozen=True, slots=True)
class _Ahead:
    """Equal steps that come next, if nothing comes between."""

    stretch: Stretch
    times_s: list[float]
    """When each begins, and the last ends."""
    quiet: int
    """So many of them end no answer: all, or all but the last."""


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
        receives: bool = False,
        recorder: Recorder | None = None,
    ) -> None:
        """`fast`: take equal steps together where nothing can happen between; what comes out is the same. `guessing`:
        speculate, with guesses so good; with a `draft_pace` they are a draft model's, whose steps take so long.
        `receives`: K and V of prompts come from elsewhere. `recorder`: gets each step that it watches, one by one."""
        self.clock = clock
        self._watched = pace if isinstance(pace, Watched) else None
        quiet_pace = pace.pace if isinstance(pace, Watched) else pace
        self._decodes_s = decodes_of(quiet_pace)
        """For looks ahead, at steps that may not be taken."""
        self._recorder = recorder
        self.guesses = guessing is not None
        self._fast = fast and guessing is None  # the control of guesses learns from each step
        if guessing is not None:
            config = msgspec.structs.replace(config, times_steps=True)
        spec = _spec(config)
        if config.targets.between_s(None, in_first_sentence=True) is not None and not config.measured:
            alone = ManualClock()  # as a server measures steps before it serves
            timed = measure(SimulatedBackend(spec, config.limits, quiet_pace, alone), config.kv_groups, alone)
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
        backend = SimulatedBackend(spec, config.limits, pace, clock, receives=receives)
        self._coldness = backend.coldness
        speculator = None
        if guessing is not None:
            draft = None
            if draft_pace is not None:
                draft = DrawnDraftModel(spec, config.limits, draft_pace, clock, guessing)
            speculator = speculator_of(guessing, self.scheduler, draft, clock)
        self.engine = Engine(
            self.scheduler, backend, info, clock=clock, speculator=speculator, recorder=recorder
        )
        self.place = 0
        """In a cluster, which says it."""
        self.busy_s = 0.0
        """In steps, so far."""
        self._new = False
        """Something was added that no step has seen."""
        self._ends_us = array("q")
        """Of all steps."""
        self._seen: _Ahead | None = None
        self._looked = False
        """`_seen` is what was found since the last step."""

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

    @property
    def quiet_until_us(self) -> int:
        """When the next step begins in which anything can happen that somebody else sees: an answer ends, a request
        begins. All steps before are equal, and may as well be taken later."""
        ahead = self._ahead()
        return microseconds(ahead.times_s[ahead.quiet] if ahead else self.clock.now_s())

    def advance(self) -> Progress:
        """The steps up to that one, and it too."""
        ahead = self._ahead()
        if ahead is not None and len(ahead.times_s) > 1:
            return self._take(ahead, len(ahead.times_s) - 1)
        self._new = self._looked = False
        began_s = self.clock.now_s()
        items = self.engine.step().items
        self.busy_s += self.clock.now_s() - began_s
        return self._progress(items, (self.clock.now_s(),))

    def catch_up(self, until_us: int) -> Progress | None:
        """The quiet steps that begin before `until_us`, when something comes from outside; None where there are none. A
        step that has begun goes on over that moment, as it does on a machine."""
        ahead = self._ahead()
        if ahead is None:
            return None
        steps = bisect_left(ahead.times_s, until_us, hi=ahead.quiet, key=microseconds)
        return self._take(ahead, steps) if steps else None

    def _take(self, ahead: _Ahead, steps: int) -> Progress:
        times_s = ahead.times_s[: steps + 1]
        self.clock.advance_to(times_s[-1])
        for begin, end in pairwise(times_s):  # in the order of single steps, so that the sum is the same
            self.busy_s += end - begin
        if self._watched is not None:
            for load in ahead.stretch.loads(steps):
                self._watched.seconds(load)
        if self._coldness is not None:
            self._coldness.after_decodes(steps)
        items = self.engine.stretch(ahead.stretch, times_s)
        self._looked = False
        return self._progress(items, tuple(times_s[1:]))

    def _progress(self, items: tuple[SequenceOutput, ...], ends_s: tuple[float, ...]) -> Progress:
        first = len(self._ends_us)
        self._ends_us.extend(map(microseconds, ends_s))
        return Progress(items, ends_s, self._ends_us, first, self.place)

    def _ahead(self) -> _Ahead | None:
        """As far as is certain now. Looked for when somebody asks: before a message comes, that is in vain."""
        if not self._fast or self._new:
            return None
        if not self._looked:
            self._seen, self._looked = self._look_ahead(), True
        return self._seen

    def _look_ahead(self) -> _Ahead | None:
        if self.engine.idle:
            return None
        stretch = Stretch(self.scheduler, TOKEN)
        steps = min(stretch.most(), _FARTHEST)
        lasting_s = self._decodes_s(stretch.sequences, stretch.kv_tokens, steps) if steps else ()
        if self._coldness is not None:
            lasting_s = list(map(add, lasting_s, self._coldness.decodes_s(steps)))
        times_s = list(accumulate(lasting_s, initial=self.clock.now_s()))
        if self._recorder is not None and self._recorder.watches(times_s[0], times_s[-1]):
            return None
        return _Ahead(stretch, times_s, steps - (stretch.ends and steps == stretch.most()))


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
