"""Fixed blocks of KV memory and who holds how many of them. Knows numbers, not tensors or sequences."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence

__all__ = ["BlockPool", "OutOfBlocks"]


class OutOfBlocks(Exception):
    """Fewer blocks are free than were asked for. Nothing was allocated."""


class BlockPool:
    """Reference-counted blocks 0 … total − 1 (PagedAttention, Kwon et al. 2023, arXiv:2309.06180).

    A block is free (no references) or used (one or more). What is in it may have a name (see `prefix`), which a free
    block keeps until it is given away. The free list is in least-recently-used order: `allocate` takes the block
    that was freed first, and a released table gives its tail back first, since the head of a sequence is the part
    that another one most likely shares. Blocks without a name come before all that have one.
    """

    def __init__(self, total: int) -> None:
        if total < 1:
            raise ValueError(f"a pool needs at least one block, not {total}")
        self.total = total
        self._references = [0] * total
        self._free = OrderedDict[int, None].fromkeys(range(total))
        self._kept = OrderedDict[int, None]()
        """Free blocks that have a name."""
        self._names: dict[int, bytes] = {}
        self.reused = 0
        """Blocks with a name that were given away for something else, so far."""
        self.on_reuse: Callable[[bytes], object] = lambda name: None
        """Told the name of a block that is given away for something else."""

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free) + len(self._kept)

    @property
    def used(self) -> int:
        """Blocks with at least one reference."""
        return self.total - self.free

    @property
    def named(self) -> int:
        """Free blocks that have a name."""
        return len(self._kept)

    @property
    def kept(self) -> dict[int, bytes]:
        """Free blocks that have a name, and the name, the one that is given away last first."""
        return {block: self._names[block] for block in reversed(self._kept)}

    def references(self, block: int) -> int:
        """How many tables hold this block."""
        return self._references[block]

    def names(self) -> dict[bytes, int]:
        """The blocks that have a name, by it."""
        return {name: block for block, name in self._names.items()}

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks with one reference each. O(count). Raises OutOfBlocks and takes nothing if short."""
        free, kept, references = self._free, self._kept, self._references
        if count == 1 and free:  # a decode's
            block = free.popitem(last=False)[0]
            references[block] = 1
            return [block]
        if count > len(free) + len(kept):
            raise OutOfBlocks(f"{count} blocks wanted, {self.free} free")
        fresh = min(count, len(free))
        blocks = [free.popitem(last=False)[0] for _ in range(fresh)]
        for block in blocks:
            references[block] = 1
        for _ in range(count - fresh):
            block = kept.popitem(last=False)[0]
            references[block] = 1
            self.reused += 1
            self.on_reuse(self._names.pop(block))
            blocks.append(block)
        return blocks

    def first_fit(self, count: int) -> int | None:
        """The first of `count` free blocks side by side, the lowest there are; None without such a hole. O(total)."""
        if count > self.free:
            return None
        run = 0
        for block, references in enumerate(self._references):
            run = 0 if references else run + 1
            if run == count:
                return block - count + 1
        return None

    @property
    def longest_hole(self) -> int:
        """The most free blocks that are side by side. O(total)."""
        longest = run = 0
        for references in self._references:
            run = 0 if references else run + 1
            longest = max(longest, run)
        return longest

    def allocate_these(self, blocks: Sequence[int]) -> None:
        """Take these free blocks, which have no names, with one reference each."""
        for block in blocks:
            del self._free[block]
            self._references[block] = 1

    def name(self, block: int, name: bytes) -> bool:
        """Give what is in a used block a name; False, and nothing, if it has one."""
        if not self._references[block]:
            raise ValueError(f"block {block} is free and cannot be named")
        return self._names.setdefault(block, name) is name

    def take(self, blocks: Iterable[int]) -> None:
        """One more reference on each block; those of them that are free must have a name."""
        for block in blocks:
            if not self._references[block]:
                del self._kept[block]
            self._references[block] += 1

    def share(self, blocks: Iterable[int]) -> None:
        """One more reference on each block; all of them must be used."""
        for block in blocks:
            if not self._references[block]:
                raise ValueError(f"block {block} is free and cannot be shared")
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """One reference less on each block; those at zero become free, the last of the sequence first."""
        counts, names, kept, free = self._references, self._names, self._kept, self._free
        for block in reversed(blocks):
            references = counts[block]
            if not references:
                raise ValueError(f"block {block} is free already")
            counts[block] = references - 1
            if references == 1:
                (kept if block in names else free)[block] = None

    def shared(self, block: int) -> bool:
        """Does more than one table hold this block?"""
        return self._references[block] > 1

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Prove that nothing leaked: `tables` are all the tables there are. Raises AssertionError otherwise."""
        held = Counter(block for table in tables for block in table)
        for block, references in enumerate(self._references):
            assert held[block] == references, f"block {block}: {references} counted, {held[block]} held"
        free = {*self._free, *self._kept}
        assert len(free) == self.free, "a block is free twice"
        assert not self._names.keys() & self._free.keys(), "a named block is among those without a name"
        assert self._kept.keys() <= self._names.keys(), "a block is kept for a name that it has not"
        assert all(not self._references[block] for block in free), "a free block has references"
        assert self.free + self.used == self.total
        assert len(free) + sum(1 for r in self._references if r) == self.total, "a block is nowhere"
