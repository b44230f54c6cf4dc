"""One run of a paper's setting, and the highest rate that keeps a level. Knows deployments, no paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from octavo.bench.measures import Measures, measure
from octavo.bench.record import Run
from octavo.memory.accounting import Report
from octavo.scheduling.settings import SchedulerConfig
from octavo.simulation.asking import Asking
from octavo.simulation.catalogue import hardware, model
from octavo.simulation.deployment import Deployment
from octavo.simulation.replica import Replica
from octavo.simulation.roofline import EFFICIENCIES, Roofline
from octavo.simulation.run import simulate
from octavo.timing.clock import ManualClock
from octavo.workload.generate import requests_of
from octavo.workload.spec import Workload

__all__ = ["Progress", "Served", "Trial", "highest_rate", "holding", "utilization_for"]

Progress = Callable[[str], None]
"""Called with what begins now."""
_ONCE = Asking()
_WIDEST = 12
"""Doublings and halvings of the first rate."""


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """A system of a paper: its name there, and what it is here."""

    name: str
    deployment: Deployment
    longest: int
    """Tokens in one sequence, also where the model was trained for fewer: a simulated one does not mind."""

    def pace(self, efficiency: str = "typical") -> Roofline:
        return self.deployment.pace_with(EFFICIENCIES[efficiency])

    @property
    def settings(self) -> SchedulerConfig:
        """The deployment's, with sequences of that length."""
        settings = self.deployment.settings
        limits = settings.limits
        longest = min(self.longest, limits.num_blocks * limits.block_size)
        changed = msgspec.structs.replace(
            limits, max_model_len=longest, max_step_tokens=max(limits.max_step_tokens, longest)
        )
        return msgspec.structs.replace(settings, limits=changed)


@dataclass(frozen=True)
class Trial:
    """What came of a run."""

    rate: float | None
    run: Run
    measures: Measures
    memory: Report

    def value(self, name: str) -> float:
        """A metric of the bench. Raises KeyError where the run has none: it was too short."""
        value = self.measures.value(name)
        if value is None:
            raise KeyError(name)
        return value


def utilization_for(model_name: str, hardware_name: str, slots: int, accelerators: int = 1) -> float:
    """The share of the memory with which `slots` tokens fit beside the weights of 16 bits. Raises ValueError where the
    memory is too small."""
    shape, machine = model(model_name), hardware(hardware_name)
    wanted = shape.parameters * 2 + slots * shape.kv_bytes_per_token()
    share = wanted / (machine.memory_gb * 1e9 * accelerators)
    if share > 1:
        raise ValueError(f"{slots} tokens of {model_name} do not fit into {accelerators} × {hardware_name}")
    return share


def holding(
    served: Served,
    workload: Workload,
    efficiency: str = "typical",
    *,
    rate: float | None = None,
    asking: Asking = _ONCE,
) -> Trial:
    """One run, at `rate` instead of the workload's own."""
    if rate is not None:
        workload = workload.at_rate(rate)
    replica = Replica(served.settings, served.pace(efficiency), ManualClock())
    run = simulate(replica, requests_of(workload), asking=asking, seed=workload.seed, rate=workload.rate)
    return Trial(workload.rate, run, measure(run), replica.scheduler.report())


def highest_rate(
    holds: Callable[[float], bool], start: float, tolerance: float = 1.05
) -> tuple[float | None, int]:
    """The highest rate found that holds, within a factor of `tolerance` of one that does not; and the runs it took.

    Doubles or halves `start`, then bisects the logarithm. None where no rate down to start / 2¹² holds. Every run has
    the same requests in the same order, faster or slower, so more is harder but for how they happen to fall.
    """
    runs, low, high = 0, 0.0, 0.0
    rate = start
    for _ in range(_WIDEST):
        runs += 1
        if holds(rate):
            low, rate = rate, rate * 2.0
        else:
            high, rate = rate, rate / 2.0
        if low and high:
            break
    if not low:
        return None, runs
    while high and high / low > tolerance:
        runs += 1
        middle = (low * high) ** 0.5
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, runs
