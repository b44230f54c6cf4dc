"""Fixed blocks of KV memory and who holds how many of them. Knows numbers, not tensors or sequences."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence

__all__ = ["BlockPool", "OutOfBlocks"]


class OutOfBlocks(Exception):
    """Fewer blocks are free than were asked for. Nothing was allocated."""


class BlockPool:
    """Reference-counted blocks 0 … total − 1 (PagedAttention, Kwon et al. 2023, arXiv:2309.06180).

    A block is free (no references) or used (one or more). The free list is in least-recently-used order:
    `allocate` takes the block that was freed first, and a released table gives its tail back first, since
    the head of a sequence is the part that another one most likely shares.
    """

    def __init__(self, total: int) -> None:
        if total < 1:
            raise ValueError(f"a pool needs at least one block, not {total}")
        self.total = total
        self._references = [0] * total
        self._free = deque(range(total))

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Blocks with at least one reference."""
        return self.total - len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks with one reference each. O(count). Raises OutOfBlocks and takes nothing if short."""
        if count > len(self._free):
            raise OutOfBlocks(f"{count} blocks wanted, {len(self._free)} free")
        blocks = [self._free.popleft() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """One more reference on each block; all of them must be used."""
        for block in blocks:
            if not self._references[block]:
                raise ValueError(f"block {block} is free and cannot be shared")
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """One reference less on each block; those at zero become free, the last of the sequence first."""
        for block in reversed(blocks):
            references = self._references[block]
            if not references:
                raise ValueError(f"block {block} is free already")
            self._references[block] = references - 1
            if references == 1:
                self._free.append(block)

    def shared(self, block: int) -> bool:
        """Does more than one table hold this block?"""
        return self._references[block] > 1

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Prove that nothing leaked: `tables` are all the tables there are. Raises AssertionError otherwise."""
        held = Counter(block for table in tables for block in table)
        for block, references in enumerate(self._references):
            assert held[block] == references, f"block {block}: {references} counted, {held[block]} held"
        free = set(self._free)
        assert len(free) == len(self._free), "a block is free twice"
        assert all(not self._references[block] for block in free), "a free block has references"
        assert self.free + self.used == self.total
        assert len(free) + sum(1 for r in self._references if r) == self.total, "a block is nowhere"
