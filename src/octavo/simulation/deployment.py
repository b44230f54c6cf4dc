"""A model on a machine with knobs: from names to a scheduler's settings and a pace. Knows no workload."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated

import msgspec

from octavo.backends.base import Limits
from octavo.config import AllocatorName, EngineConfig, PolicyName, ProfileName
from octavo.engine.build import targets_of
from octavo.errors import InvalidParameter, SettingsError
from octavo.scheduling.policies import POLICIES
from octavo.scheduling.profiles import Targets
from octavo.scheduling.settings import SchedulerConfig
from octavo.simulation.catalogue import hardware, model
from octavo.simulation.guessing import Guessing
from octavo.simulation.roofline import EFFICIENCIES, Arithmetic, Efficiency, Roofline
from octavo.timing.step_time import StepLoad

__all__ = ["BELOW", "Deployment", "check_steps"]

BELOW = ": with fewer memory binds, with more arithmetic"
"""What a critical batch says."""

_Count = Annotated[int, msgspec.Meta(ge=1)]


class Deployment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """What is to be simulated. Names of knobs are those of `octavo serve`."""

    model: str
    hardware: str
    weight_bits: float = 16
    kv_bits: float = 16
    arithmetic: Arithmetic = "bf16"
    tensor_parallel: _Count = 1
    memory_utilization: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.9
    block_size: _Count = 16
    max_running: _Count = 256
    max_step_tokens: _Count = 2048
    max_model_len: _Count | None = None
    policy: PolicyName = "stall-free"
    allocator: AllocatorName = "paged"
    prefix_cache: bool = True
    tbt_target_s: float | None = None
    ttft_target_s: float | None = None
    profile: ProfileName | None = None
    priority_aging_s: float = 60.0
    speculation: str = "off"
    """See `Guessing.parse`."""
    speculation_tokens: int | None = None
    draft_model: str | None = None
    """Who guesses; None: nobody that takes time."""
    efficiency: Efficiency = EFFICIENCIES["typical"]

    @cached_property
    def pace(self) -> Roofline:
        """Raises InvalidParameter for an unknown model or machine, and for what cannot be built of them."""
        return self.pace_with(self.efficiency)

    def pace_with(self, efficiency: Efficiency) -> Roofline:
        return Roofline(
            hardware=hardware(self.hardware),
            shape=model(self.model),
            weight_bits=self.weight_bits,
            kv_bits=self.kv_bits,
            arithmetic=self.arithmetic,
            tensor_parallel=self.tensor_parallel,
            efficiency=efficiency,
        )

    @cached_property
    def guessing(self) -> Guessing | None:
        """Raises InvalidParameter and SettingsError."""
        found = Guessing.parse(self.speculation, self.speculation_tokens)
        if found is None and self.draft_model is not None:
            raise InvalidParameter(
                f"draft_model is {self.draft_model}, and speculation is off; give its acceptance, such as 0.7.",
                "draft_model",
            )
        if found is not None and self.draft_model is not None and len(found.chances) > 1:
            raise InvalidParameter(
                f"speculation is {self.speculation}, and a draft model's guesses are as often right at every place; "
                "give a share, such as 0.7, or leave draft_model out.",
                "speculation",
            )
        return found

    def draft_pace_with(self, efficiency: Efficiency) -> Roofline | None:
        """Of a draft model on the same machine. Raises InvalidParameter for an unknown one."""
        if self.draft_model is None:
            return None
        return Roofline(
            hardware=hardware(self.hardware),
            shape=model(self.draft_model),
            weight_bits=self.weight_bits,
            kv_bits=self.kv_bits,
            arithmetic=self.arithmetic,
            tensor_parallel=self.tensor_parallel,
            efficiency=efficiency,
        )

    @cached_property
    def kv_tokens(self) -> int:
        """That fit beside the weights. Raises CapacityError where none do. A draft model takes of the same memory: its
        weights, and as many tokens' K and V."""
        draft = self.draft_pace_with(self.efficiency)
        if draft is None:
            return self.pace.kv_tokens(self.memory_utilization)
        return self.pace.kv_tokens(
            self.memory_utilization,
            beside_bytes=draft.weight_bytes,
            beside_token_bytes=draft.kv_bytes_per_token,
        )

    @cached_property
    def longest(self) -> int:
        """Tokens in one sequence."""
        most = self.pace.shape.context
        if self.max_model_len is not None and self.max_model_len > most:
            raise InvalidParameter(
                f"max_model_len is {self.max_model_len}, and {self.model} was trained for {most} tokens."
            )
        return self.max_model_len or most

    @cached_property
    def targets(self) -> Targets:
        """Of requests without their own. Raises SettingsError."""
        return targets_of(
            EngineConfig(
                model_dir=self.model,
                tbt_target_s=self.tbt_target_s,
                ttft_target_s=self.ttft_target_s,
                profile=self.profile,
                priority_aging_s=self.priority_aging_s,
            )
        )

    def _check(self, holds: int) -> None:
        """Raise SettingsError for what `octavo serve` refuses, with `holds` tokens of KV memory."""
        check_steps(self.max_step_tokens, self.max_running, self.block_size)
        if self.max_model_len is not None and self.max_model_len > holds:
            raise SettingsError(
                f"max_model_len is {self.max_model_len}, but the KV memory holds {holds} tokens: a request of that "
                "length could never finish; lower it or give more memory."
            )
        if self.tbt_target_s is not None:
            least_s = self.pace.seconds(StepLoad(1, 1, 1, 0))
            if self.tbt_target_s < least_s:
                raise SettingsError(
                    f"tbt_target is {1e3 * self.tbt_target_s:g} ms, but a step with one token takes "
                    f"{1e3 * least_s:.1f} ms on this machine; give a longer one."
                )

    @cached_property
    def settings(self) -> SchedulerConfig:
        """As `octavo serve` would make them on this machine. Raises CapacityError where the model does not fit, and
        SettingsError for what the server refuses too."""
        blocks = self.kv_tokens // self.block_size
        self._check(blocks * self.block_size)
        longest = min(self.longest, max(blocks, 1) * self.block_size)
        step_tokens = self.max_step_tokens
        if not POLICIES[self.policy].chunked:
            step_tokens = max(step_tokens, longest)
        limits = Limits(
            num_blocks=max(blocks, 1),
            block_size=self.block_size,
            max_slots=self.max_running,
            max_step_tokens=step_tokens,
            max_model_len=longest,
        )
        return SchedulerConfig(
            limits,
            1,
            (),
            prefix_cache=self.prefix_cache,
            policy=self.policy,
            allocator=self.allocator,
            budget_tokens=self.max_step_tokens,
            targets=self.targets,
            aging_s=self.priority_aging_s,
            times_steps=self.targets != Targets(),  # else nobody asks how long a step takes
        )

    def facts(self) -> list[tuple[str, str]]:
        """What can be said of it without a workload: a name and words for each."""
        pace, limits = self.pace, self.settings.limits
        tokens = limits.num_blocks * limits.block_size
        longest = f"{tokens // limits.max_model_len:,} sequences of {limits.max_model_len:,} tokens"
        several = f"{self.tensor_parallel} × " if self.tensor_parallel > 1 else ""
        share = pace.weight_bytes / (pace.hardware.memory_gb * 1e9 * self.tensor_parallel)
        return [
            ("machine", f"{several}{pace.hardware.name} ({pace.hardware.source})"),
            ("model", f"{self.model}, {self.weight_bits:g}-bit weights ({pace.shape.source})"),
            ("weights", f"{pace.weight_bytes / 1e9:.1f} GB, {share:.0%} of the memory"),
            ("K and V", f"{pace.kv_bytes_per_token / 1024:g} KiB a token; {tokens:,} tokens fit"),
            (
                "largest batch",
                f"{longest}, {tokens // 1024:,} of 1,024; {limits.max_slots:,} may run",
            ),
            ("critical batch", pace.critical_sum + BELOW),
        ]


def check_steps(max_step_tokens: int, max_running: int, block_size: int) -> None:
    """Raise SettingsError for a step that `octavo serve` refuses."""
    if max_step_tokens < block_size:
        raise SettingsError(
            f"max_step_tokens is {max_step_tokens}, less than one block of {block_size} tokens; give at least that."
        )
    if max_step_tokens < max_running:
        raise SettingsError(
            f"max_step_tokens is {max_step_tokens}, less than max_running {max_running}: a step could not advance "
            "every running sequence by one token; raise the one or lower the other."
        )
