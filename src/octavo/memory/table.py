"""A sequence's block table: logical to physical blocks, growth by need, copy-on-write. Knows no tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from octavo.memory.pool import BlockPool

__all__ = ["BlockTable", "Growth", "written"]


class Growth(NamedTuple):
    """What changed in a table: `blocks` now stand from logical block `at` on; `copy` (source, target) comes first."""

    at: int
    blocks: tuple[int, ...]
    copy: tuple[int, int] | None


def written(growths: Sequence[Growth | None]) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """What changed in a sequence's tables, by KV group, as a plan has it: where each begins, and its blocks."""
    return (
        tuple([growth.at if growth is not None else 0 for growth in growths]),
        tuple([growth.blocks if growth is not None else () for growth in growths]),
    )


class BlockTable:
    """The blocks of one sequence in one KV group.

    Owns one reference on each of its blocks. A shared block is never written: the first write to it takes a
    block of its own, and copies what must be kept.
    """

    def __init__(self, pool: BlockPool, block_size: int, blocks: list[int] | None = None) -> None:
        """`blocks`: those it begins with; their references are its own from now on."""
        self._pool = pool
        self._block_size = block_size
        self.blocks = blocks or []

    def needed(self, start: int, end: int) -> int:
        """How many blocks `grow(start, end)` would take from the pool."""
        first, last = self._span(start, end)
        needed = last - first
        for block in self.blocks[first:last]:
            needed -= not self._pool.shared(block)
        return needed

    def lacks(self, start: int, end: int) -> bool:
        """Would `grow(start, end)` raise OutOfBlocks now?"""
        return self.needed(start, end) > self._pool.free

    def grow(self, start: int, end: int) -> Growth | None:
        """Make positions start … end − 1 writable; None if they already are. Raises OutOfBlocks, changing nothing.

        All positions before `start` must have been covered by earlier calls.
        """
        first, last = self._span(start, end)
        assert first <= len(self.blocks), f"a gap before position {start}"
        count = self.needed(start, end)
        if not count:
            return None
        fresh = iter(self._pool.allocate(count))
        copy = None
        at = last
        for index in range(first, last):
            if index >= len(self.blocks):
                self.blocks.append(next(fresh))
            elif self._pool.shared(self.blocks[index]):
                source, target = self.blocks[index], next(fresh)
                self._pool.release([source])
                self.blocks[index] = target
                if index == first and start % self._block_size:
                    copy = (source, target)
            else:
                continue
            at = min(at, index)
        return Growth(at, tuple(self.blocks[at:last]), copy)

    def append(self) -> None:
        """A block more. Raises OutOfBlocks."""
        self.blocks += self._pool.allocate(1)

    def shrink(self, end: int) -> None:
        """Give back the blocks behind position `end` − 1."""
        keep = -(-end // self._block_size)
        self._pool.release(self.blocks[keep:])
        del self.blocks[keep:]

    def fork(self) -> BlockTable:
        """A table that shares every block of this one, a partial last one too."""
        child = BlockTable(self._pool, self._block_size)
        self._pool.share(self.blocks)
        child.blocks = list(self.blocks)
        return child

    def release(self) -> None:
        """Give all blocks back."""
        self._pool.release(self.blocks)
        self.blocks = []

    def _span(self, start: int, end: int) -> tuple[int, int]:
        return start // self._block_size, -(-end // self._block_size)
