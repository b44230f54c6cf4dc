"""What a simulation serves with: a machine of the catalogue, one that was measured, or a table. Knows options."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from octavo.cli.simulate_pace import KNOBS, outside, pace_asked
from octavo.errors import InvalidParameter
from octavo.scheduling.settings import SchedulerConfig
from octavo.simulation.calibrated import CalibratedPace, Calibration, HostWork, Watched
from octavo.simulation.deployment import Deployment
from octavo.simulation.measured import Measured
from octavo.simulation.pace import Pace
from octavo.simulation.roofline import EFFICIENCIES
from octavo.timing.step_time import StepLoad

__all__ = ["TYPICAL", "Paces", "Served", "served"]

TYPICAL = "typical"
_OF_THE_CATALOGUE = (
    "weight_bits",
    "kv_bits",
    "arithmetic",
    "tensor_parallel",
    "memory_utilization",
    "draft_model",
)


@dataclass(frozen=True)
class Paces:
    """How long steps take, and those of a draft model where there is one."""

    pace: Pace
    draft: Pace | None = None


@dataclass(frozen=True)
class Served:
    """Everything that runs need, and what is said of it."""

    settings: SchedulerConfig
    facts: list[tuple[str, str]]
    paces: Mapping[str, Paces]
    """One run for each: `typical`, and for a machine that was never measured the ends of its range too."""
    words: str
    """How the pace is known."""
    model: str
    hardware: str
    kv_bytes_per_token: float | None = None
    host: HostWork = field(default_factory=HostWork)
    warnings: Callable[[], list[str]] = list
    """What the runs so far asked of the pace beyond what was measured."""

    @property
    def calibrated(self) -> bool:
        return len(self.paces) == 1


def served(deployment: Deployment, pace: Path | None, given: frozenset[str]) -> Served:
    """`given`: options that were typed. Raises InvalidParameter."""
    found = pace_asked(pace, deployment.hardware, deployment.model)
    if found is None:
        paces = {
            name: Paces(deployment.pace_with(one), deployment.draft_pace_with(one))
            for name, one in EFFICIENCIES.items()
        }
        facts = deployment.facts()
        return Served(
            deployment.settings,
            facts,
            paces,
            "uncalibrated",
            deployment.model,
            deployment.hardware,
            deployment.pace.kv_bytes_per_token,
        )
    if isinstance(found, CalibratedPace):
        # The critical batch that the catalogue tells of is the roofline's.
        facts = [fact for fact in deployment.facts() if fact[0] != "critical batch"]
        watched = Watched(found, dict.fromkeys(StepLoad._fields, (0, sys.maxsize)))
        words = "with a table's step times"
        only = {TYPICAL: Paces(watched)}
        return Served(deployment.settings, facts, only, words, deployment.model, deployment.hardware)
    server = _as_measured(deployment, found, given)
    watched = Watched(found.pace, found.seen)
    return Served(
        server.settings,
        server.facts(),
        {TYPICAL: Paces(watched)},
        f"calibrated on {found.date}",
        found.model,
        found.machine.processor,
        found.kv_bytes_per_token,
        found.host,
        lambda: outside(watched),
    )


def _as_measured(own: Deployment, found: Calibration, given: frozenset[str]) -> Measured:
    for name in _OF_THE_CATALOGUE:
        if name in given:
            raise InvalidParameter(
                f"--{name.replace('_', '-')} is about a machine of the catalogue, and a calibrated one is as it was "
                "measured; leave it out."
            )
    return Measured(
        calibration=found,
        policy=own.policy,
        allocator=own.allocator,
        prefix_cache=own.prefix_cache,
        targets=own.targets,
        aging_s=own.priority_aging_s,
        **{name: getattr(own, name) for name in KNOBS if name in given},
    )
