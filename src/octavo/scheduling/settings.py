"""A scheduler's settings and what it counts. Knows no sequence."""

from __future__ import annotations

import msgspec

from octavo.backends.base import Limits
from octavo.config import AllocatorName, PolicyName
from octavo.scheduling.admission import Capacity
from octavo.scheduling.profiles import Targets
from octavo.timing.step_time import TimedLoad

__all__ = ["Counters", "SchedulerConfig"]


class SchedulerConfig(msgspec.Struct, frozen=True):
    """What a scheduler must know of model and memory; it goes into the head of the step log."""

    limits: Limits
    kv_groups: int
    end_ids: tuple[int, ...]
    """Tokens that end any sequence (the model's)."""
    prefix_cache: bool = True
    """Whether computed blocks are found again by sequences that begin alike."""
    policy: PolicyName = "stall-free"
    allocator: AllocatorName = "paged"
    budget_tokens: int = 0
    """Tokens that a step should have at most; 0: as many as it can have."""
    targets: Targets = Targets()
    """Of requests without a profile."""
    aging_s: float = 60.0
    """How long a request waits until it counts as one priority earlier; 0: never."""
    times_steps: bool = True
    """Whether it learns from each step how long others will take. Without it no target for a step can be kept: only
    where no request has one, and nothing is guessed ahead."""
    measured: tuple[TimedLoad, ...] = ()
    """Steps that were timed before the first."""
    disk_fetches: int = 0
    """Blocks that may be asked of the disk cache at once; 0 where there is none."""

    @property
    def step_tokens(self) -> int:
        """The budget: `budget_tokens`, where one was set."""
        return self.budget_tokens or self.limits.max_step_tokens

    def capacity(self, vocab_size: int) -> Capacity:
        limits = self.limits
        return Capacity(
            vocab_size=vocab_size,
            max_model_len=limits.max_model_len,
            max_running=limits.max_slots,
            kv_tokens=limits.num_blocks * limits.block_size,
            block_size=limits.block_size,
            forks=self.allocator == "paged",
        )


class Counters(msgspec.Struct):
    """Totals since the start."""

    steps: int = 0
    step_tokens: int = 0
    """Computed in them."""
    preemptions: int = 0
    idle_slot_steps: int = 0
    """Steps times slots whose sequence had ended (policy `static`)."""
    prompt_tokens: int = 0
    """Of every request taken, once each."""
    generation_tokens: int = 0
    prefix_queried_tokens: int = 0
    """Of the prompts that were looked up, each sequence's once."""
    drafts: int = 0
    """Steps of sequences with guessed tokens in them."""
    draft_tokens: int = 0
    accepted_tokens: int = 0
    """Guessed tokens that were right, and all before them."""
    saved_steps: int = 0
    """That no sequence needed, since what was guessed for each that decoded was right."""
    prefix_hit_tokens: int = 0
    """Of those, the tokens that had been computed."""
