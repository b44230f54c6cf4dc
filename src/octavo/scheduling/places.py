"""Slots and block tables: who may have one now, who gives one back. Knows no order, no budget, no plan."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Items

from octavo.memory.allocation import Allocation
from octavo.memory.pool import BlockPool
from octavo.memory.table import Growth
from octavo.scheduling.sequence import Sequence
from octavo.scheduling.settings import SchedulerConfig
from octavo.scheduling.sharing import Sharing

__all__ = ["Places"]

_SPARE = 100
"""One block of so many stays free for those that run, when another one is admitted beside them."""


class Places:
    """A running sequence holds one slot, and one table in every KV group."""

    def __init__(self, config: SchedulerConfig) -> None:
        limits = config.limits
        self.allocation = Allocation(config.allocator, limits.block_size, limits.max_model_len)
        self.pools = tuple(BlockPool(limits.num_blocks) for _ in range(config.kv_groups))
        shares = config.prefix_cache and self.allocation.paged
        self.sharing = Sharing(self.pools, limits.block_size, enabled=shares, fetches=config.disk_fetches)
        self._block_size = limits.block_size
        self._max_slots = limits.max_slots
        self._slots = list(range(limits.max_slots - 1, -1, -1))
        self.refused_blocks = 0
        """Blocks that were free, and yet not side by side, when the last sequence was refused; 0 after another end."""

    def fits(self, group: Items[Sequence], names: Items[bytes], running: Collection[Sequence]) -> bool:
        """Can these waiting sequences (and their unforked siblings) run now, the first beginning with the blocks of
        `names`?"""
        if self.lacking_slots(group) > 0:
            return False
        return not any(self.lacking(group, names, running))

    @property
    def free_slots(self) -> int:
        return len(self._slots)

    def lacking_slots(self, group: Items[Sequence]) -> int:
        """How many slots are missing for that; less than 0 where there are more."""
        return len(group) + len(siblings_of(group[0])) - len(self._slots)

    def lacking(
        self, group: Items[Sequence], names: Items[bytes], running: Collection[Sequence]
    ) -> tuple[int, ...]:
        """How many blocks are missing for that in each KV group, at least; 0 where there are enough."""
        self.refused_blocks = 0
        sequence = group[0]
        if not self.allocation.paged:
            reserved = self._reserved(sequence)
            holes = [self.allocation.fits(pool, reserved) for pool in self.pools]
            if not all(holes):
                self.refused_blocks = sum(pool.free for pool in self.pools if pool.free >= reserved)
            return tuple(0 if hole else reserved for hole in holes)
        prefixes = self.sharing.prefixes
        lacks = []
        for number, pool in enumerate(self.pools):
            promised = sum(s.tables[number].needed(s.computed, max(s.total, s.computed)) for s in running)
            wanted = sum(self._blocks(one.total) for one in group)
            wanted += prefixes.idle_of(number, names) - len(names)
            spare = max(pool.total // _SPARE, self._distance(sequence)) if running else 0
            lacks.append(max(wanted + promised + spare - pool.free, 0))
        return tuple(lacks)

    def give(self, sequence: Sequence, names: Items[bytes]) -> None:
        """Slots for a sequence that `fits` and its unforked siblings, and its tables, which begin with the blocks of
        `names`."""
        for taker in (sequence, *siblings_of(sequence)):
            taker.slot = self._slots.pop() if taker.slot is None else taker.slot
        reserved = self._reserved(sequence)
        sequence.tables = tuple(
            self.allocation.table(pool, self.sharing.prefixes.take(group, names), reserved)
            for group, pool in enumerate(self.pools)
        )
        self.sharing.begin(sequence, len(names))

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """`child`, which has a slot, goes on from what `parent` has computed, in tables that share all of it."""
        child.tables = tuple(table.fork() for table in parent.tables)
        child.computed = parent.computed
        child.writable = parent.writable = 0
        child.stored = parent.computed // self._block_size * self._block_size
        child.begun = True
        child.chain = parent.chain.copy()

    def grow(self, sequence: Sequence, end: int) -> tuple[Growth | None, ...] | None:
        """Room for the tokens up to `end` behind those computed, and how its tables change; None without the blocks."""
        start = sequence.computed
        if any(table.lacks(start, end) for table in sequence.tables):
            return None
        growths = tuple([table.grow(start, end) for table in sequence.tables])
        sequence.writable = min(len(table.blocks) for table in sequence.tables) * self._block_size
        return growths

    def lengthen(self, sequence: Sequence) -> None:
        """A block more in every table of a sequence that fills all it has, none of which it shares from its next token
        on. Raises OutOfBlocks, changing nothing, where a pool is empty and the others are as full."""
        for table in sequence.tables:
            table.append()
        sequence.writable += self._block_size

    def shrink(self, sequence: Sequence) -> None:
        """Give back what was taken for tokens behind those computed: drafts that were wrong."""
        if self.allocation.paged:
            for table in sequence.tables:
                table.shrink(sequence.computed)
            sequence.writable = min(len(table.blocks) for table in sequence.tables) * self._block_size

    def drop(self, sequence: Sequence) -> None:
        """Its blocks, not its slot: it will go on from another one."""
        for table in sequence.tables:
            table.release()
        sequence.tables = ()
        self.sharing.leave(sequence)
        sequence.computed = sequence.told = sequence.writable = 0

    def take_slot(self, sequence: Sequence) -> None:
        """Of one that has no tables: a sibling that was never forked."""
        if sequence.slot is not None:
            self._slots.append(sequence.slot)
            sequence.slot = None

    def take_back(self, sequence: Sequence) -> None:
        """Slot and blocks of a running sequence, and the slots kept for siblings that it has not forked yet."""
        self.drop(sequence)
        for giver in (sequence, *siblings_of(sequence)):
            self.take_slot(giver)

    def check(self, everyone: Items[Sequence], running: Collection[Sequence]) -> None:
        """Prove that no block and no slot leaked. Raises AssertionError."""
        for group, pool in enumerate(self.pools):
            pool.check(s.tables[group].blocks for s in everyone if s.tables)
        held = [s.slot for s in everyone if s.slot is not None]
        assert sorted([*held, *self._slots]) == list(range(self._max_slots)), "a slot leaked"
        self.sharing.check(running)

    def _distance(self, sequence: Sequence) -> int:
        """Blocks that must stay free beside a sequence that was preempted: twice as many each time, so that it does so
        only as often as its length has binary digits."""
        if not sequence.preempted:
            return 0
        rest = sequence.prompt_tokens + sequence.request.max_output - sequence.total
        return min(self._blocks(rest), (1 << min(sequence.preempted, 30)) - 1)

    def _reserved(self, sequence: Sequence) -> int:
        return self.allocation.reserved_blocks(sequence.prompt_tokens, sequence.request.max_output)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._block_size)


def siblings_of(sequence: Sequence) -> Items[Sequence]:
    """Those that wait for this sequence to compute the prompt they share."""
    request = sequence.request
    return request.unforked if not sequence.output_tokens or request.params.beam_width else ()
