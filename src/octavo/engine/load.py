"""What a plan has to compute, in the numbers that times of steps are explained by. Knows plans, no scheduler."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.backends.base import Plan
from octavo.timing.step_time import StepLoad

__all__ = ["load_of"]


_NOTHING: Mapping[int, int] = {}


def load_of(plan: Plan, received: Mapping[int, int] = _NOTHING) -> StepLoad:
    """What a plan has to compute: the numbers that the scheduler's own model of step times is fitted to; but a row that
    verifies guesses reads what is stored, once, as a decode does. `received`: of slots, how many tokens of the
    beginning have K and V that were computed elsewhere: they are no work."""
    samples, own = [0] * len(plan.rows), [0] * len(plan.rows)
    for sample in plan.samples:
        samples[sample.row] += 1
        own[sample.row] += sample.target < 0 and sample.slot == plan.rows[sample.row].slot
    load = StepLoad()
    for row, count, chosen in zip(plan.rows, samples, own, strict=True):
        if chosen > 1:
            read = row.start + 1
            pairs = StepLoad().with_chunk(row.start, row.count, count).pairs - read
            load = StepLoad(
                load.tokens + row.count,
                load.samples + count,
                load.kv_tokens + read,
                load.pairs + pairs,
                load.sequences + 1,
            )
        else:
            ready = min(max(received.get(row.slot, 0) - row.start, 0), row.count)
            if ready < row.count:
                load = load.with_chunk(row.start + ready, row.count - ready, count)
    return load
