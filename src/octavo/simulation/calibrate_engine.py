"""Measures an engine in this process: steps of designed kinds, in a shuffled order, and a mixed traffic as servers have
it, again and again. Knows no HTTP."""

from __future__ import annotations

import os
import platform
import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import octavo
from octavo.backends.base import Handle, Limits, Plan
from octavo.engine.engine import Engine
from octavo.sampling.params import SamplingParams
from octavo.scheduling.inputs import Add
from octavo.scheduling.outputs import SequenceOutput
from octavo.simulation.backend import load_of
from octavo.simulation.calibrate import Observed, fit
from octavo.simulation.calibrated import Calibration, Machine
from octavo.simulation.coldness import colds_of
from octavo.timing.step_time import StepLoad

__all__ = [
    "AT_ONCE",
    "BEGINNINGS",
    "LONGEST_TRAFFIC",
    "Probe",
    "calibrate_engine",
    "limits_of",
    "observe",
    "probes",
    "ranges",
    "this_machine",
]

_PROMPTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048)
_STREAMS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256)
_CONTEXTS = (16, 256, 1024)
_MOST_CONTEXT = 4096
"""Tokens of all the prompts of a probe for decodes: longer ones measure the same slope for more time."""
_DECODED = 8
_REPEATS = 3
AT_ONCE = (1, 2, 4, 8, 16, 32)
"""Sequences of mixed traffic, one number after another."""
_TRAFFIC_STEPS = 40
"""With each of these numbers."""
BEGINNINGS = (48, 160, 480)
"""Tokens that several prompts of the traffic begin with."""
LONGEST_TRAFFIC = 512


class Probe(NamedTuple):
    """Streams with prompts of equal length, and a prompt that comes once all of them decode."""

    streams: int
    context: int
    outputs: int
    late: int = 0


class _Step(NamedTuple):
    load: StepLoad
    seconds: float


_Key = tuple[int, int, StepLoad, tuple[float, ...]]
"""Of a kind of step: the probe, the place in it, what it computed, and how cold it found the caches."""


def calibrate_engine(
    engine: Engine,
    *,
    model: str,
    repeats: int = _REPEATS,
    seed: int = 0,
    told: Callable[[int, int], None] | None = None,
) -> Calibration:
    """`told`: called with probes done and probes in all. Raises BenchError where the engine is too small to tell."""
    pace, host, fitted = fit(seen := observe(engine, repeats=repeats, seed=seed, told=told), seed=seed)
    return Calibration(
        octavo=octavo.__version__,
        date=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        machine=this_machine(),
        model=model,
        source="engine",
        pace=pace,
        host=host,
        fitted=fitted,
        seen=ranges(seen),
        limits=limits_of(engine),
        kv_bytes_per_token=engine.info.block_bytes / engine.info.block_size,
        threads=engine.info.threads,
    )


def observe(
    engine: Engine, *, repeats: int = _REPEATS, seed: int = 0, told: Callable[[int, int], None] | None = None
) -> list[Observed]:
    """The median of each kind of step over the repeats. The whole step is timed, with what the scheduler takes."""
    chance = random.Random(seed)
    designed: list[Probe | None] = [*probes(engine), None]
    turns = list(enumerate(designed)) * repeats
    chance.shuffle(turns)
    found: dict[_Key, list[float]] = defaultdict(list)
    with _loads(engine) as last:
        _traffic(engine, chance, last)  # memory is touched, threads have begun
        for done, (place, probe) in enumerate(turns):
            if told is not None:
                told(done, len(turns))
            steps = _traffic(engine, chance, last) if probe is None else _run(engine, probe, chance, last)
            colds = colds_of(step.load for step in steps)
            for number, (step, cold) in enumerate(zip(steps, colds, strict=True)):
                found[place, number, step.load, cold].append(step.seconds)
    return [
        Observed((load,), statistics.median(seconds), steps=len(seconds), cold=cold)
        for (_, _, load, cold), seconds in found.items()
    ]


def probes(engine: Engine) -> Iterator[Probe]:
    """What is measured: prompts alone, streams that decode, and prompts that come while others decode."""
    capacity, budget = engine.info.capacity, engine.info.max_step_tokens
    longest = min(capacity.max_model_len, capacity.kv_tokens) - _DECODED - 2
    streams = [one for one in _STREAMS if one <= min(capacity.max_running, budget)]
    yield from (
        Probe(1, tokens, 1) for tokens in sorted({*_PROMPTS, budget}) if tokens <= min(longest, 4 * budget)
    )
    for context in _CONTEXTS:
        for several in streams:
            room = several * (context + 2 * _DECODED + several)
            if context <= longest and several * context <= _MOST_CONTEXT and room <= capacity.kv_tokens:
                yield Probe(several, context, _DECODED)
    for several in (2, 8, 32):
        for late in (48, budget, 2 * budget):
            room = several * (16 + 2 * _DECODED + several) + late + 1
            if several in streams and late <= longest and room <= capacity.kv_tokens:
                yield Probe(several, 16, _DECODED, late)


def limits_of(engine: Engine) -> Limits:
    """What a simulation of this engine needs to know of its memory."""
    capacity = engine.info.capacity
    return Limits(
        num_blocks=engine.info.num_blocks,
        block_size=engine.info.block_size,
        max_slots=capacity.max_running,
        max_step_tokens=engine.info.max_step_tokens,
        max_model_len=capacity.max_model_len,
    )


def ranges(seen: list[Observed]) -> dict[str, tuple[int, int]]:
    """The least and the most of each of StepLoad's numbers."""
    loads = [load for one in seen for load in one.loads]
    return {
        name: (min(column), max(column))
        for name, column in zip(StepLoad._fields, zip(*loads, strict=True), strict=True)
    }


def this_machine() -> Machine:
    """As its system describes it."""
    processor = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                processor = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return Machine(
        processor=processor, cores=os.cpu_count() or 1, system=f"{platform.system()} {platform.release()}"
    )


@contextmanager
def _loads(engine: Engine) -> Iterator[list[StepLoad]]:
    """The load of the step that ran last, while this lasts."""
    launch, last = engine.backend.launch, list[StepLoad]()

    def noted(plan: Plan) -> Handle:
        last[:] = [load_of(plan)]
        return launch(plan)

    engine.backend.launch = noted  # type: ignore[method-assign]
    try:
        yield last
    finally:
        engine.backend.launch = launch  # type: ignore[method-assign]


def _run(engine: Engine, probe: Probe, chance: random.Random, last: list[StepLoad]) -> list[_Step]:
    """Every step until the last stream has its outputs. Tokens are new each time, so nothing is found in a cache."""
    outputs = probe.outputs
    if probe.streams > 1 or probe.late:  # the first ones go on until the last ones' prompts are read
        outputs += -(
            -(probe.streams * probe.context + probe.late) // max(engine.info.max_step_tokens // 2, 1)
        )
    for number in range(probe.streams):
        _add(engine, f"{number}", probe.context, outputs, chance)
    steps: list[_Step] = []
    late = probe.late
    while not engine.idle:
        _step(engine, last, steps)
        if late and last and last[0].samples == probe.streams:
            _add(engine, "late", late, 1, chance)
            late = 0
    return steps


def _traffic(engine: Engine, chance: random.Random, last: list[StepLoad]) -> list[_Step]:
    """Prompts of all lengths, some with a beginning that is known, come while others decode. Who comes in which step is
    always the same, and so are the steps' loads; the tokens are new."""
    capacity, script = engine.info.capacity, random.Random(0)
    longest = min(capacity.max_model_len, capacity.kv_tokens // 2) - 1
    beginnings = [
        _tokens(engine, tokens, chance)
        for tokens in BEGINNINGS
        if tokens < min(longest // 2, LONGEST_TRAFFIC)
    ]
    steps: list[_Step] = []
    asked = answered = 0
    numbers = [
        one
        for one in AT_ONCE
        if one <= min(capacity.max_running, engine.info.max_step_tokens)
        for _ in range(_TRAFFIC_STEPS)
    ]
    while len(steps) < len(numbers) or not engine.idle:
        at_once = numbers[len(steps)] if len(steps) < len(numbers) else 0
        for _ in range(min(at_once - (asked - answered), 2)):
            outputs = script.randint(4, 60)
            begin = script.choice(beginnings) if beginnings and script.random() < 0.4 else ()
            most = max(min(longest - len(begin) - outputs, LONGEST_TRAFFIC), 1)
            own = round(most ** script.uniform(0.3, 1.0))
            _ask(engine, f"traffic {asked}", (*begin, *_tokens(engine, own, chance)), outputs)
            asked += 1
        items = _step(engine, last, steps)
        answered += sum(item.finish_reason is not None for item in items)
    return steps


def _step(engine: Engine, last: list[StepLoad], steps: list[_Step]) -> Sequence[SequenceOutput]:
    """One more, which `steps` gets where it computed anything."""
    last.clear()
    began_s = engine.clock.now_s()
    items = engine.step().items
    seconds = engine.clock.now_s() - began_s
    if last:
        steps.append(_Step(last[0], seconds))
    return items


def _add(engine: Engine, name: str, tokens: int, outputs: int, chance: random.Random) -> None:
    _ask(engine, name, _tokens(engine, tokens, chance), outputs)


def _tokens(engine: Engine, count: int, chance: random.Random) -> tuple[int, ...]:
    return tuple(chance.choices(range(engine.info.capacity.vocab_size), k=count))


def _ask(engine: Engine, name: str, prompt: tuple[int, ...], outputs: int) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=outputs, ignore_eos=True, seed=0)
    engine.add(Add(name, prompt, params, engine.clock.now_s()))
