"""Counts what the sequences that run hold, for `memory/accounting`. Decides nothing."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Items

from octavo.memory.accounting import Accounting, MemoryUse, Report
from octavo.scheduling.places import Places
from octavo.scheduling.sequence import Sequence
from octavo.scheduling.settings import Counters, SchedulerConfig

__all__ = ["Reporter"]

_DUPLICATES_EVERY = 64
"""Steps: looking for them takes a hash of each block."""


class Reporter:
    """One scheduler's account."""

    def __init__(self, config: SchedulerConfig, places: Places) -> None:
        self._config = config
        self._places = places
        self._accounting = Accounting()
        self._steps = self._running = self._idle_slots = 0
        size, pools = config.limits.block_size, places.pools
        self._use = MemoryUse(total=size * sum(pool.total for pool in pools))
        self._counted = False
        self._stored = 0
        """Less than 0 where those that have ended and are kept share more than the others have stored."""

    @property
    def counts_in(self) -> int:
        """So many steps, and duplicates will be looked for in the one after them."""
        return -self._steps % _DUPLICATES_EVERY

    def look(self, running: Collection[Sequence], kept: Collection[Sequence], waiting: int) -> None:
        """This is held in the step that begins."""
        self._counted = not self.counts_in
        self._steps += 1
        self._running, self._idle_slots = len(running), len(kept)
        size, pools = self._config.limits.block_size, self._places.pools
        held = sum([len(table.blocks) for one in running for table in one.tables])
        if kept:
            held += sum([len(table.blocks) for one in kept for table in one.tables])
        used = sum([pool.used for pool in pools])
        self._stored = len(pools) * sum([one.computed for one in running]) - size * (held - used)
        self._use = MemoryUse(
            total=self._use.total,
            allocated=size * used,
            stored=max(self._stored, 0),
            external=size * self._places.refused_blocks if waiting else 0,
            duplicate=size * self._duplicates(running) if self._counted else self._use.duplicate,
            shared=size * (held - used),
        )

    def look_on(self, running: int, grown: Items[int], durations: Items[float]) -> None:
        """In the next steps nothing is new, but that each of those that run has one token more, and that they took
        `grown` [steps] blocks in every group. All steps but the last took `durations`. In none of them duplicates are
        looked for."""
        pools = len(self._places.pools)
        self._steps += len(grown)
        self._use = self._accounting.observe_on(
            self._use,
            stored=self._stored,
            more=running * pools,
            allocated=[self._config.limits.block_size * pools * blocks for blocks in grown],
            seconds=durations,
            running=self._running,
            idle_slots=self._idle_slots,
        )
        self._stored += running * pools * len(grown)
        self._counted = False

    def lasted(self, seconds: float) -> None:
        """The step that was looked at has ended."""
        if seconds > 0:
            self._accounting.observe(
                self._use, self._running, self._idle_slots, seconds, counted=self._counted
            )

    def _duplicates(self, running: Collection[Sequence]) -> int:
        """Whole blocks with equal beginnings in different places."""
        size = self._config.limits.block_size
        places: set[tuple[bytes, int]] = set()
        for one in running:
            full = min(one.computed, len(one.tokens)) // size  # without those that are being chosen
            places.update(zip(one.chain.names(one.tokens, full), one.tables[0].blocks, strict=False))
        names = {name for name, _ in places}
        return (len(places) - len(names)) * len(self._places.pools)

    def report(self, counters: Counters, *, idle: bool) -> Report:
        """Since the start. `idle`: nothing runs any more, so nothing is held."""
        account = self._accounting
        queried = counters.prefix_queried_tokens
        return Report(
            policy=self._config.policy,
            allocator=self._config.allocator,
            steps=counters.steps,
            busy_s=account.seconds,
            now=MemoryUse(total=self._use.total) if idle else self._use,
            utilization=account.share("allocated", "total"),
            internal_waste=account.share("internal", "allocated"),
            external_waste=account.share("external", "total"),
            duplicate_waste=account.duplicate,
            sharing_saved=account.share("shared", "shared", "allocated"),
            running=account.mean("running"),
            most_running=account.most_running,
            idle_slots=account.mean("idle_slots"),
            step_tokens=counters.step_tokens / counters.steps if counters.steps else 0.0,
            preemptions=counters.preemptions,
            prefix_hit_rate=counters.prefix_hit_tokens / queried if queried else 0.0,
        )
