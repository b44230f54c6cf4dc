"""What the KV memory was good for: how much of it held tokens, how much was wasted and how, and what sharing saved.

Knows counts, no sequence. The kinds of waste are those of PagedAttention (Kwon et al. 2023, arXiv:2309.06180, figure
2), where "reserved for the future" counts as internal too.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

__all__ = ["Accounting", "MemoryUse", "Report"]


class MemoryUse(msgspec.Struct, frozen=True):
    """One moment, in tokens that memory has room for (block_size times blocks), over all KV groups."""

    total: int = 0
    allocated: int = 0
    """In blocks that somebody holds."""
    stored: int = 0
    """Tokens of sequences that still run; what several share counts once."""
    external: int = 0
    """Free, and yet of no use to the sequence that waits: not side by side."""
    duplicate: int = 0
    """Of what is stored: whole blocks that are in another place too."""
    shared: int = 0
    """That sequences would hold in addition if they shared nothing."""

    @property
    def internal(self) -> int:
        """In blocks that somebody holds, without a token of a sequence that runs."""
        return max(self.allocated - self.stored, 0)


class Report(msgspec.Struct, frozen=True):
    """Since the start, averages over the time in steps; shares are 0 to 1."""

    policy: str
    allocator: str
    steps: int
    busy_s: float
    """In steps."""
    now: MemoryUse
    utilization: float
    """Of all memory: held by somebody."""
    internal_waste: float
    """Of what is held: without a token of a sequence that runs."""
    external_waste: float
    """Of all memory: free, and of no use to the one that waits."""
    duplicate_waste: float
    """Of the tokens stored: stored elsewhere too."""
    sharing_saved: float
    """Of what sequences would hold if they shared nothing."""
    running: float
    """Sequences at once."""
    most_running: int
    idle_slots: float
    """Sequences that had ended and kept their slots, at once."""
    step_tokens: float
    """Tokens in a step."""
    preemptions: int
    prefix_hit_rate: float
    """Of the prompts looked up: tokens that had been computed."""


class Accounting:
    """Sums of `MemoryUse` over time."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.most_running = 0
        self._sums = dict.fromkeys(
            ("total", "allocated", "stored", "internal", "external", "shared", "running", "idle_slots"), 0.0
        )
        self._duplicate = [0.0, 0.0]
        """Duplicate, and stored, where both were counted."""

    def observe(
        self, use: MemoryUse, running: int, idle_slots: int, seconds: float, *, counted: bool
    ) -> None:
        """Memory was used so for `seconds`. `counted`: duplicates were looked for."""
        self.seconds += seconds
        self.most_running = max(self.most_running, running)
        sums = self._sums
        sums["total"] += seconds * use.total
        sums["allocated"] += seconds * use.allocated
        sums["stored"] += seconds * use.stored
        sums["internal"] += seconds * use.internal
        sums["external"] += seconds * use.external
        sums["shared"] += seconds * use.shared
        sums["running"] += seconds * running
        sums["idle_slots"] += seconds * idle_slots
        if counted:
            self._duplicate[0] += use.duplicate
            self._duplicate[1] += use.stored

    def observe_on(
        self,
        use: MemoryUse,
        *,
        stored: int,
        more: int,
        allocated: Sequence[int],
        seconds: Sequence[float],
        running: int,
        idle_slots: int,
    ) -> MemoryUse:
        """In each of the next steps `more` tokens more are stored, counted from `stored` (which may be less than
        nothing, and is nothing then), and `allocated` [steps] more are allocated. As `observe` after each, but for the
        last one, of which `seconds` [steps - 1] does not tell; how memory is used in that."""
        sums, all_s = self._sums, self.seconds
        total, external, shared = sums["total"], sums["external"], sums["shared"]
        held, kept, internal = sums["allocated"], sums["stored"], sums["internal"]
        runs, idle = sums["running"], sums["idle_slots"]
        now_held, now_stored = use.allocated, stored
        rare = use.external or use.shared or idle_slots
        for blocks, lasted_s in zip(allocated, (*seconds, 0.0), strict=True):
            now_held += blocks
            stored += more
            now_stored = max(0, stored)
            if lasted_s > 0:
                all_s += lasted_s
                total += lasted_s * use.total
                held += lasted_s * now_held
                kept += lasted_s * now_stored
                internal += lasted_s * (now_held - now_stored if now_held > now_stored else 0)
                runs += lasted_s * running
                if rare:
                    external += lasted_s * use.external
                    shared += lasted_s * use.shared
                    idle += lasted_s * idle_slots
        self.seconds = all_s
        self.most_running = max(self.most_running, running)
        sums.update(total=total, external=external, shared=shared, allocated=held, stored=kept)
        sums.update(internal=internal, running=runs, idle_slots=idle)
        return msgspec.structs.replace(use, allocated=now_held, stored=now_stored)

    def mean(self, name: str) -> float:
        """Over time."""
        return self._sums[name] / self.seconds if self.seconds else 0.0

    def share(self, part: str, *whole: str) -> float:
        """Of the sums over time."""
        below = sum(self._sums[name] for name in whole)
        return self._sums[part] / below if below else 0.0

    @property
    def duplicate(self) -> float:
        """Share of what is stored that is stored elsewhere too."""
        duplicate, stored = self._duplicate
        return duplicate / stored if stored else 0.0
