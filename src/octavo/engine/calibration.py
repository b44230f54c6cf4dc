"""Times some steps before the first request, so that a target for their length can be kept from the start.

Knows plans and a backend, no scheduler.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from octavo.backends.base import Backend, ChoiceRule, Plan, PlanRow, SampleRow, SlotOpen
from octavo.errors import SettingsError
from octavo.timing.clock import Clock
from octavo.timing.step_time import StepLoad, StepTime, TimedLoad

__all__ = ["check_target", "measure"]

_CHUNKS = (1, 4, 16, 64, 256)
_DECODES = (1, 4, 16)
_REPEATS = 2


def measure(backend: Backend, groups: int, clock: Clock) -> tuple[TimedLoad, ...]:
    """Steps of several kinds, on slots and blocks that are not in use: before they are read, they are written."""
    measured = []
    for step, (plan, load) in enumerate(_plans(backend, groups)):
        plan = msgspec.structs.replace(plan, step=step)
        began_s = clock.now_s()
        handle = backend.launch(plan)
        backend.sample(handle)
        backend.collect(handle)
        if step:  # the first one warms up
            measured.append(TimedLoad(load, clock.now_s() - began_s))
    return tuple(measured)


def check_target(target_s: float | None, measured: tuple[TimedLoad, ...]) -> None:
    """Raise SettingsError where not even one stream alone could be served in steps of `target_s`."""
    if target_s is None:
        return
    least_s = StepTime(measured).predict(StepLoad(1, 1, 1, 0)) or min(one.seconds for one in measured)
    if target_s < least_s:
        raise SettingsError(
            f"tbt_target is {1e3 * target_s:g} ms, but a step with one token takes {1e3 * least_s:.1f} ms on this "
            "machine; give a longer one."
        )


def _plans(backend: Backend, groups: int) -> Iterator[tuple[Plan, StepLoad]]:
    limits = backend.limits
    longest = min(limits.max_step_tokens, limits.max_model_len - 1, limits.num_blocks * limits.block_size)
    rule = ChoiceRule(prompt_tokens=1)
    counts = sorted({*(one for one in _CHUNKS if one < longest), longest})
    for count in [counts[0], *(one for one in counts for _ in range(_REPEATS))]:
        blocks = tuple(range(-(-count // limits.block_size)))
        opened = SlotOpen(0, (0,) * count, (blocks,) * groups, rule)
        load = StepLoad().with_chunk(0, count, 1)
        yield Plan(0, (opened,), (), (PlanRow(0, 0, count),), (SampleRow(0, count - 1, 0),)), load
    for rows in _DECODES:
        if rows > min(limits.max_slots, limits.num_blocks, limits.max_step_tokens):
            continue
        load = StepLoad()
        for _ in range(rows):
            load = load.with_chunk(0, 1, 1)
        opens = tuple(SlotOpen(slot, (0,), ((slot,),) * groups, rule) for slot in range(rows))
        own = tuple(PlanRow(slot, 0, 1) for slot in range(rows))
        samples = tuple(SampleRow(slot, 0, slot) for slot in range(rows))
        for _ in range(_REPEATS):
            yield Plan(0, opens, (), own, samples), load
