"""How a sequence gets its blocks: by need, or a contiguous range for all it may ever hold. Knows no scheduler.

`paged` is PagedAttention (Kwon et al. 2023, arXiv:2309.06180). The `reserved` ones are what that paper compares it
with: the memory of FasterTransformer and Orca, for the longest sequence that the model has (max), for the request's own
length rounded up to a power of two (pow2), and for exactly that length (oracle: it takes `max_tokens` for the length of
the answer, which a benchmark makes true with `ignore_eos`).
"""

from __future__ import annotations

from typing import get_args

from octavo.config import AllocatorName
from octavo.memory.pool import BlockPool, OutOfBlocks
from octavo.memory.table import BlockTable, Growth

__all__ = ["Allocation", "ReservedTable"]


class Allocation:
    """Makes tables, and says what one will take."""

    def __init__(self, name: AllocatorName, block_size: int, max_model_len: int) -> None:
        assert name in get_args(AllocatorName)
        self.name = name
        self.paged = name == "paged"
        """By need, and then sequences may share blocks."""
        self._block_size = block_size
        self._longest = max_model_len

    def reserved_blocks(self, prompt_tokens: int, max_output: int) -> int:
        """Blocks that a sequence takes at once when it is admitted; 0 where it takes them by need."""
        needed = prompt_tokens + max_output
        tokens = {
            "paged": 0,
            "reserved-max": self._longest,
            "reserved-pow2": min(1 << (needed - 1).bit_length(), self._longest),
            "reserved-oracle": needed,
        }[self.name]
        return -(-tokens // self._block_size)

    def fits(self, pool: BlockPool, blocks: int) -> bool:
        """Is there a range of so many free blocks?"""
        return pool.first_fit(blocks) is not None

    def table(self, pool: BlockPool, blocks: list[int], reserved: int) -> BlockTable:
        """A new table that begins with `blocks`, or has `reserved` ones of its own. Raises OutOfBlocks."""
        if self.paged:
            return BlockTable(pool, self._block_size, blocks)
        assert not blocks, "reserved ranges share nothing"
        return ReservedTable(pool, self._block_size, reserved)


class ReservedTable(BlockTable):
    """A contiguous range of blocks, the first that fits, from admission to the end. It never grows."""

    def __init__(self, pool: BlockPool, block_size: int, count: int) -> None:
        """Raises OutOfBlocks where no hole is large enough, though all of them together may be."""
        first = pool.first_fit(count)
        if first is None:
            raise OutOfBlocks(f"no {count} free blocks are side by side; {pool.free} are free")
        blocks = list(range(first, first + count))
        pool.allocate_these(blocks)
        super().__init__(pool, block_size, blocks)

    def needed(self, start: int, end: int) -> int:
        return 0

    def grow(self, start: int, end: int) -> Growth | None:
        assert end <= len(self.blocks) * self._block_size, "a reserved table is too short"
        return None

    def fork(self) -> BlockTable:
        raise NotImplementedError("reserved ranges share nothing: a fork computes its tokens again")
