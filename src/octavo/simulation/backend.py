"""A backend without tensors: it says how long each plan takes, and moves the clock by it. Knows no workload.

Every token that it chooses is the same ordinary one, so an answer is as long as its `max_tokens` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from octavo.backends.base import Handle, Limits, Plan, PlanError, Samples, TokenSample
from octavo.models.spec import ModelSpec
from octavo.simulation.pace import Pace
from octavo.timing.clock import ManualClock
from octavo.timing.step_time import StepLoad

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["TOKEN", "SimulatedBackend", "load_of"]

TOKEN = 0
"""What every answer consists of."""

_SAMPLE = TokenSample(TOKEN)


def load_of(plan: Plan) -> StepLoad:
    """What a plan has to compute: the same numbers that the scheduler's own model of step times is fitted to."""
    samples = [0] * len(plan.rows)
    for sample in plan.samples:
        samples[sample.row] += 1
    load = StepLoad()
    for row, count in zip(plan.rows, samples, strict=True):
        load = load.with_chunk(row.start, row.count, count)
    return load


class SimulatedBackend:
    """Computes nothing, in the time that `pace` says."""

    name = "simulated"
    invariant = True
    arithmetic_id = "simulated"

    def __init__(self, spec: ModelSpec, limits: Limits, pace: Pace, clock: ManualClock) -> None:
        self.spec = spec
        self.limits = limits
        self.pace = pace
        self._clock = clock

    def launch(self, plan: Plan) -> Handle:
        return plan

    def sample(self, handle: Handle, masks: Sequence[NDArray[np.int32] | None] | None = None) -> None:
        """The choice takes no time of its own: it is in the pace, by samples."""

    def collect(self, handle: Handle) -> Samples:
        assert isinstance(handle, Plan)
        self._clock.advance(self.pace.seconds(load_of(handle)))
        return tuple(
            _SAMPLE if one.target < 0 else TokenSample(one.target, logprob=0.0) for one in handle.samples
        )

    def read_block(self, group: int, block: int) -> bytes:
        raise PlanError("A simulated block has no bytes; a disk tier is not simulated.")

    def write_block(self, group: int, block: int, data: bytes) -> None:
        raise PlanError("A simulated block has no bytes; a disk tier is not simulated.")

    def close(self) -> None:
        """Nothing is held."""
