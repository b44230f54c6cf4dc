"""One way to serve: a deployment, so many times, behind a router; or a server that was measured, with other knobs.

Knows its command line, and what it costs an hour or takes of the machine.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from octavo.config import RouterName
from octavo.planning.prices import Prices
from octavo.scheduling.settings import SchedulerConfig
from octavo.simulation.calibrated import HostWork
from octavo.simulation.deployment import Deployment
from octavo.simulation.guessing import Guessing
from octavo.simulation.measured import Measured
from octavo.simulation.pace import Pace
from octavo.simulation.replica import Replica
from octavo.timing.clock import ManualClock

__all__ = ["Choice", "Setting", "new_replica"]

_NO_HOST = HostWork()
_MIB = 1 << 20


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan chooses between."""

    deployment: Deployment
    replicas: Annotated[int, msgspec.Meta(ge=1)] = 1
    router: RouterName = "least-loaded"

    @property
    def accelerators(self) -> int:
        return self.replicas * self.deployment.tensor_parallel

    def per_hour(self, prices: Prices) -> float:
        """Money. Raises InvalidParameter where no rent is known."""
        return prices.rent(self.deployment.hardware).per_hour * self.accelerators

    @property
    def settings(self) -> SchedulerConfig:
        """Raises CapacityError and SettingsError."""
        return self.deployment.settings

    @property
    def host(self) -> HostWork:
        return _NO_HOST

    @property
    def critical_batch(self) -> float | None:
        return self.deployment.pace.critical_batch

    @property
    def critical_sum(self) -> str:
        return self.deployment.pace.critical_sum

    def replica(self) -> Replica:
        """A new one."""
        one = self.deployment
        draft = one.draft_pace_with(one.efficiency)
        return new_replica(one.settings, one.pace, one.guessing, draft)

    @property
    def machines(self) -> str:
        """In words: `2 × 4 h100`."""
        one = self.deployment
        many = f"{one.tensor_parallel} {one.hardware}" if one.tensor_parallel > 1 else one.hardware
        return f"{self.replicas} × {many}"

    @property
    def knobs(self) -> str:
        """In words, those of the server."""
        one = self.deployment
        words = [f"{one.weight_bits:g}-bit weights", one.policy, f"{one.max_step_tokens} tokens a step"]
        words += [f"{one.max_running} at once", f"{100 * one.memory_utilization:g} % of the memory"]
        words.append("prefix cache" if one.prefix_cache else "no prefix cache")
        return ", ".join([*words, _guesses(one.speculation, one.draft_model)])

    def serve_command(self) -> str:
        """What each server of this plan is started with."""
        one = self.deployment
        words = [
            "octavo serve",
            one.model,
            f"--policy {one.policy}",
            f"--max-step-tokens {one.max_step_tokens}",
            f"--max-running {one.max_running}",
            f"--memory-utilization {one.memory_utilization:g}",
            f"--block-size {one.block_size}",
        ]
        if one.max_model_len is not None:
            words.append(f"--max-model-len {one.max_model_len}")
        return " ".join([*words, *_switches(one.prefix_cache, one.speculation, one.draft_model)])


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One server on a machine that was measured. It costs what it takes of that machine: of its cores first, and then
    of its memory."""

    model: str
    """As `octavo serve` is to be told."""
    server: Measured
    kv_memory_bytes: int
    replicas: Annotated[int, msgspec.Meta(ge=1, le=1)] = 1
    router: RouterName = "least-loaded"

    @property
    def settings(self) -> SchedulerConfig:
        """Raises InvalidParameter and SettingsError."""
        return self.server.settings

    @property
    def host(self) -> HostWork:
        return self.server.host

    @property
    def critical_batch(self) -> float | None:
        return self.server.critical_batch

    @property
    def critical_sum(self) -> str:
        return self.server.critical_sum

    def replica(self) -> Replica:
        """A new one."""
        return new_replica(self.server.settings, self.server.pace, self.server.guessing, None)

    def with_times(self, times: float) -> Setting:
        """The same, and all of it takes so many times as long as was measured."""
        return msgspec.structs.replace(self, server=msgspec.structs.replace(self.server, times=times))

    @property
    def threads(self) -> int | None:
        return self.server.calibration.threads

    @property
    def takes(self) -> str:
        """In words, what a machine has less of."""
        threads = self.threads
        cores = "" if threads is None else f"{threads} {'threads' if threads > 1 else 'thread'} and "
        return f"{cores}{_size(self.kv_memory_bytes)} for K and V"

    @property
    def machines(self) -> str:
        return self.takes

    @property
    def knobs(self) -> str:
        """In words, those of the server."""
        one, limits = self.server, self.settings.limits
        words = [one.policy, f"{self.settings.budget_tokens} tokens a step", f"{limits.max_slots} at once"]
        words.append("prefix cache" if one.prefix_cache else "no prefix cache")
        return ", ".join([*words, _guesses(one.speculation, None)])

    def serve_command(self) -> str:
        """What the server is started with."""
        one, limits = self.server, self.settings.limits
        threads = [] if self.threads is None else [f"--threads {self.threads}"]
        words = [
            "octavo serve",
            self.model,
            *threads,
            f"--kv-memory {_size(self.kv_memory_bytes).replace(' ', '')}",
            f"--policy {one.policy}",
            f"--max-step-tokens {self.settings.budget_tokens}",
            f"--max-running {limits.max_slots}",
            f"--block-size {limits.block_size}",
            f"--max-model-len {limits.max_model_len}",
        ]
        return " ".join([*words, *_switches(one.prefix_cache, one.speculation, None)])


def new_replica(
    settings: SchedulerConfig, pace: Pace, guessing: Guessing | None, draft_pace: Pace | None
) -> Replica:
    return Replica(settings, pace, ManualClock(), guessing=guessing, draft_pace=draft_pace)


def _switches(prefix_cache: bool, speculation: str, draft_model: str | None) -> list[str]:
    """A server guesses unless it is told not to."""
    words = [] if prefix_cache else ["--no-prefix-cache"]
    if speculation == "off":
        return [*words, "--speculation off"]
    return [*words, f"--speculation {'auto' if draft_model is None else f'draft:{draft_model}'}"]


def _guesses(speculation: str, draft_model: str | None) -> str:
    if speculation == "off":
        return "no speculation"
    who = "" if draft_model is None else f" by {draft_model}"
    return f"speculation{who} ({speculation} accepted)"


def _size(count: int) -> str:
    return f"{count // _MIB} MiB" if count % _MIB == 0 else str(count)
