"""Which computed blocks hold which beginnings of sequences, so that nobody computes them twice. Knows no sequence.

A full block is named by a chain of hashes: its tokens, and the name of the block before it (vLLM's automatic prefix
caching; SGLang's radix tree, Zheng et al. 2024, arXiv:2312.07104, finds the same prefixes). So one name stands for a
whole beginning, and a look-up walks names until one is missing.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from hashlib import sha256
from itertools import takewhile

from octavo.memory.pool import BlockPool

__all__ = ["Chain", "PrefixCache"]


class Chain:
    """The names of a sequence's full blocks, made as its tokens become known.

    `identity` is whatever else the stored values depend on, and the salt that keeps strangers apart.
    """

    def __init__(self, identity: bytes, block_size: int) -> None:
        self._block_size = block_size
        self._root = sha256(identity).digest()
        self.made: list[bytes] = []
        """The names so far, from the first block on."""

    def copy(self) -> Chain:
        """A chain that goes on by itself."""
        other = copy(self)
        other.made = list(self.made)
        return other

    def names(self, tokens: Sequence[int], count: int) -> list[bytes]:
        """Of the first `count` blocks of `tokens`, which must be the tokens of earlier calls, or go on from them, and
        fill these blocks: a name of less would stand for several beginnings."""
        self._make(tokens, count)
        return self.made[:count]

    def name(self, tokens: Sequence[int], place: int) -> bytes:
        """Of one block, as `names` has it."""
        if place >= len(self.made):
            self._make(tokens, place + 1)
        return self.made[place]

    def _make(self, tokens: Sequence[int], count: int) -> None:
        made, size = self.made, self._block_size
        assert count * size <= len(tokens), f"{count} blocks of {len(tokens)} tokens"
        name = made[-1] if made else self._root
        for at in range(len(made) * size, count * size, size):
            name = sha256(name + array("i", tokens[at : at + size]).tobytes()).digest()
            made.append(name)


class PrefixCache:
    """The named blocks of all KV groups; a name is in all of them or does not count.

    It holds no references: a block that nobody uses stays findable in the free list until the pool gives it away, the
    least recently used first, and of one sequence the last.
    """

    def __init__(self, pools: Sequence[BlockPool]) -> None:
        self._pools = pools
        self._blocks: list[dict[bytes, int]] = [{} for _ in pools]
        """Per group: the block that has a name."""
        self.on_evict: Callable[[int, int, bytes], None] | None = None
        """Told group, block and name of what is given away for something else, while it is still in the block."""
        for group, pool in enumerate(pools):
            pool.on_reuse = partial(self._evict, group)

    def __len__(self) -> int:
        """Blocks with a name."""
        return sum(map(len, self._blocks))

    @property
    def idle(self) -> int:
        """Blocks with a name that nobody uses: free, and yet worth something."""
        return sum(pool.named for pool in self._pools)

    def kept(self, group: int) -> dict[int, bytes]:
        """Blocks that nobody uses and their names, the one that is given away last first."""
        return self._pools[group].kept

    def find(self, names: Sequence[bytes]) -> int:
        """How many of `names`, from the first on, are there."""
        return sum(1 for _ in takewhile(lambda name: all(name in blocks for blocks in self._blocks), names))

    def idle_of(self, group: int, names: Sequence[bytes]) -> int:
        """How many blocks of `names`, which are there, nobody uses: to take them makes the pool smaller."""
        return sum(not self._pools[group].references(self._blocks[group][name]) for name in names)

    def take(self, group: int, names: Sequence[bytes]) -> list[int]:
        """The blocks of `names`, which are there, with a reference more on each."""
        blocks = [self._blocks[group][name] for name in names]
        self._pools[group].take(blocks)
        return blocks

    def refresh(self, names: Sequence[bytes]) -> None:
        """Note that `names`, which are there, will be of use: they are given away last."""
        for group, pool in enumerate(self._pools):
            pool.release(self.take(group, names))

    def fill(self, group: int, names: Sequence[bytes]) -> dict[bytes, int]:
        """Blocks that nobody uses, for those of `names` that are not there and as far as blocks are free; they have
        the names from now on, and their contents must be written before anything reads them."""
        pool = self._pools[group]
        missing = [name for name in dict.fromkeys(names) if name not in self._blocks[group]][: pool.free]
        filled = dict(zip(missing, pool.allocate(len(missing)), strict=True))
        for name, block in filled.items():
            self.store(group, name, block)
        pool.release(list(filled.values()))
        return filled

    def store(self, group: int, name: bytes, block: int) -> None:
        """`block` (used, full and computed) holds what `name` says. The first block to hold it keeps the name."""
        if name not in self._blocks[group] and self._pools[group].name(block, name):
            self._blocks[group][name] = block

    def _evict(self, group: int, name: bytes) -> None:
        block = self._blocks[group].pop(name)
        if self.on_evict is not None:
            self.on_evict(group, block, name)

    def check(self) -> None:
        """Prove that names and blocks agree. Raises AssertionError."""
        for pool, blocks in zip(self._pools, self._blocks, strict=True):
            assert len(set(blocks.values())) == len(blocks), "a block has two names"
            assert blocks == pool.names(), "pool and prefix cache disagree about names"
