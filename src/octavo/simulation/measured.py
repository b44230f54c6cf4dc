"""A server that was calibrated, with knobs: from a pace file to a scheduler's settings. Knows no workload."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated

import msgspec

from octavo.config import AllocatorName, PolicyName
from octavo.errors import InvalidParameter
from octavo.scheduling.policies import POLICIES
from octavo.scheduling.profiles import Targets
from octavo.scheduling.settings import SchedulerConfig
from octavo.simulation.calibrated import Calibration, HostWork
from octavo.simulation.deployment import BELOW, check_steps
from octavo.simulation.guessing import Guessing
from octavo.simulation.pace import Pace, ScaledPace
from octavo.timing.step_time import StepLoad

__all__ = ["Measured"]

_Count = Annotated[int, msgspec.Meta(ge=1)]


class Measured(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """What is to be simulated: the server as it was measured, but for the knobs that are given."""

    calibration: Calibration
    block_size: _Count | None = None
    """In memory of the same size."""
    kv_tokens: _Count | None = None
    """That its memory holds K and V of, in place of those of the measured server."""
    max_running: _Count | None = None
    max_step_tokens: _Count | None = None
    max_model_len: _Count | None = None
    policy: PolicyName = "stall-free"
    allocator: AllocatorName = "paged"
    prefix_cache: bool = True
    targets: Targets = Targets()
    aging_s: float = 60.0
    speculation: str = "off"
    """See `Guessing.parse`."""
    speculation_tokens: int | None = None
    times: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    """As long as was measured take steps, and the way to and from the engine: how far that may be off."""

    @cached_property
    def pace(self) -> Pace:
        pace = self.calibration.pace
        return pace if self.times == 1.0 else ScaledPace(pace=pace, times=self.times)

    @property
    def host(self) -> HostWork:
        host = self.calibration.host
        return HostWork(**{name: self.times * getattr(host, name) for name in host.__struct_fields__})

    @cached_property
    def guessing(self) -> Guessing | None:
        """Raises InvalidParameter and SettingsError."""
        return Guessing.parse(self.speculation, self.speculation_tokens)

    @cached_property
    def settings(self) -> SchedulerConfig:
        """Raises InvalidParameter for a sequence that is longer than the measured server took, and SettingsError for
        what `octavo serve` refuses."""
        own = self.calibration.limits
        if self.max_model_len is not None and self.max_model_len > own.max_model_len:
            raise InvalidParameter(
                f"max_model_len is {self.max_model_len}, and the server that was calibrated took {own.max_model_len}."
            )
        block_size = self.block_size or own.block_size
        blocks = max((self.kv_tokens or own.num_blocks * own.block_size) // block_size, 1)
        longest = min(self.max_model_len or own.max_model_len, blocks * block_size)
        budget, running = self.max_step_tokens or own.max_step_tokens, self.max_running or own.max_slots
        check_steps(budget, running, block_size)
        limits = msgspec.structs.replace(
            own,
            num_blocks=blocks,
            block_size=block_size,
            max_slots=running,
            max_step_tokens=budget if POLICIES[self.policy].chunked else max(budget, longest),
            max_model_len=longest,
        )
        return SchedulerConfig(
            limits,
            1,
            (),
            prefix_cache=self.prefix_cache,
            policy=self.policy,
            allocator=self.allocator,
            budget_tokens=budget,
            targets=self.targets,
            aging_s=self.aging_s,
        )

    @property
    def critical_batch(self) -> float | None:
        """B*: tokens a step whose arithmetic, at the rate of the largest steps, takes as long as a step with one token
        does. None where more tokens took no longer: memory bound all that was measured."""
        alone_s, more_s = self._critical
        return alone_s / more_s if more_s > 0 else None

    @property
    def critical_sum(self) -> str:
        """How the critical batch was reckoned."""
        alone_s, more_s = self._critical
        if more_s <= 0:
            return "more tokens took no longer: memory bound all that was measured"
        return (
            f"B* = {1e3 * alone_s:.3g} ms of a step of one token ÷ {1e3 * more_s:.3g} ms of another token in the "
            f"largest steps = {alone_s / more_s:.0f} tokens a step"
        )

    @property
    def _critical(self) -> tuple[float, float]:
        """Seconds: of a step with one token, and of one token more in the largest steps."""
        pace, most = self.calibration.pace, self.calibration.seen["tokens"][1]
        slope = pace.seconds(StepLoad(2 * most)) - pace.seconds(StepLoad(most))
        return pace.seconds(StepLoad(1, 1, 1, 0, 1)), slope / most

    def facts(self) -> list[tuple[str, str]]:
        """What can be said of it without a workload: a name and words for each."""
        one, limits = self.calibration, self.settings.limits
        tokens = limits.num_blocks * limits.block_size
        machine, fitted = one.machine, one.fitted
        longest = f"{tokens // limits.max_model_len:,} sequences of {limits.max_model_len:,} tokens"
        errors = f"{fitted.error_p50:.1%} in the median, {fitted.error_p95:.1%} at P95"
        way = "in its process" if one.source == "engine" else f"at {one.source}"
        facts = [
            ("machine", f"{machine.processor}, {machine.cores} cores, {machine.system}"),
            ("model", f"{one.model}, measured {way} on {one.date} by octavo {one.octavo}"),
            (
                "steps",
                f"{one.fitted.steps:,} measured; kinds of them that a fit had not seen are predicted within {errors}",
            ),
            (
                "largest batch",
                f"{longest}, {tokens // 1024:,} of 1,024; {limits.max_slots:,} may run",
            ),
        ]
        if one.kv_bytes_per_token is not None:
            facts.append(("K and V", f"{one.kv_bytes_per_token / 1024:g} KiB a token; {tokens:,} tokens fit"))
        facts.append(("critical batch", self.critical_sum + BELOW * (self.critical_batch is not None)))
        return facts
