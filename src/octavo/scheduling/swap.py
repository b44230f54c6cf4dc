"""Which blocks go out to disk when they are given away, and which come back for whom. Knows no bytes.

What is on disk comes back as free blocks with names, as if it had never left: a sequence then finds it in the prefix
cache like everything else, and nobody holds memory for what has not arrived.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import NamedTuple

from octavo.backends.base import DiskBlock
from octavo.memory.pool import BlockPool
from octavo.memory.prefix import PrefixCache
from octavo.scheduling.inputs import DiskNews
from octavo.scheduling.sequence import Sequence

__all__ = ["NO_ORDERS", "PATIENCE_S", "Orders", "Swap"]

PATIENCE_S = 2.0
"""A disk that has not answered for this long is late: nobody waits for it, and it is asked no more until it has."""


class Orders(NamedTuple):
    """What a plan says about the disk; see there."""

    saves: tuple[DiskBlock, ...] = ()
    loads: tuple[DiskBlock, ...] = ()
    fetches: tuple[bytes, ...] = ()
    touches: tuple[bytes, ...] = ()


NO_ORDERS = Orders()


class Swap:
    """The scheduler's picture of the disk cache, from what it ordered and what the inputs told.

    The picture may be wrong where the disk lost something in the meantime: then it is told so instead of getting it.
    `most`: how many blocks may be asked for and not here yet, for they are held beside the pool when they come.
    """

    def __init__(self, prefixes: PrefixCache, pools: Items[BlockPool], block_size: int, most: int) -> None:
        self._prefixes = prefixes
        self._pools = pools
        self._block_size = block_size
        self._most = most
        self._known: set[bytes] = set()
        """Keys on disk, or on the way there."""
        self._fetching: dict[bytes, float] = {}
        """Keys that were asked for, and when; the oldest first."""
        self._now_s = 0.0
        self._saves: list[DiskBlock] = []
        self._loads: dict[tuple[int, int], DiskBlock] = {}
        """By group and block."""
        self._fetches: list[bytes] = []
        self._touches: list[bytes] = []
        self.hit_tokens = 0
        """Tokens that came back, since the start."""
        prefixes.on_evict = self._evicted

    def take_in(self, news: DiskNews | None, now_s: float) -> None:
        """A step begins: what was fetched gets blocks, as far as any are free."""
        self._now_s = now_s
        if news is None:
            return
        self._known.update(news.known)
        for key in news.gone:
            self._known.discard(key)
            self._fetching.pop(key, None)
        here = [key for key in news.fetched if self._fetching.pop(key, None) is not None]
        for group in range(len(self._pools)):
            names = [key[:-1] for key in here if key[-1] == group]
            for name, block in self._prefixes.fill(group, names).items():
                self._loads[group, block] = DiskBlock(group, block, _key(name, group))
                self.hit_tokens += 0 if group else self._block_size

    def awaited(self, sequence: Sequence, names: Items[bytes], found: int) -> bool:
        """Will more of a waiting sequence's beginning `names` than the first `found`, which memory has, come from disk
        soon? Asks for it."""
        if self._late or not (self._known or self._fetching):
            return False
        if found < sequence.asked or not self._is_known(names[found]):
            # What was asked for and does not come any more was lost, or given away again: nobody asks twice.
            return self._is_fetched(names[found])
        if not self._fits(sequence, names[:found]):
            return False
        at = found
        while at < len(names) and self._is_known(names[at]) and len(self._fetching) < self._most:
            for key in self._keys(names[at]):
                if key not in self._fetching:
                    self._fetching[key] = self._now_s
                    self._fetches.append(key)
            at += 1
        if at > found:
            sequence.asked = at
            # Room for what comes must not be made of what it goes on from.
            self._prefixes.refresh(names[:found])
        return True

    def take_orders(self) -> Orders:
        """What the plan in the making says about the disk; then nothing is ordered any more."""
        if not (self._saves or self._loads or self._fetches or self._touches):
            return NO_ORDERS
        orders = Orders(
            tuple(self._saves), tuple(self._loads.values()), tuple(self._fetches), tuple(self._touches)
        )
        for order in (self._saves, self._loads, self._fetches, self._touches):
            order.clear()
        return orders

    def unsaved(self) -> list[DiskBlock]:
        """What would be lost with the memory: blocks with names that nobody uses and the disk has not, the one that is
        given away last first (of one sequence the first)."""
        return [
            DiskBlock(group, block, _key(name, group))
            for group in range(len(self._pools))
            for block, name in self._prefixes.kept(group).items()
            if _key(name, group) not in self._known
        ]

    def _evicted(self, group: int, block: int, name: bytes) -> None:
        key = _key(name, group)
        if self._loads.pop((group, block), None) is not None:
            return  # it came with this very step and goes again: what is in the block is something else
        if key in self._known:
            self._touches.append(key)
        else:
            self._known.add(key)
            self._saves.append(DiskBlock(group, block, key))

    @property
    def _late(self) -> bool:
        return self._now_s - next(iter(self._fetching.values()), self._now_s) > PATIENCE_S

    def _fits(self, sequence: Sequence, found: Items[bytes]) -> bool:
        """Could the sequence run now, as far as memory is concerned? If not, what comes would be gone before it can."""
        blocks = -(-sequence.total // self._block_size) - len(found)
        return all(
            blocks + self._prefixes.idle_of(group, found) <= pool.free
            for group, pool in enumerate(self._pools)
        )

    def _keys(self, name: bytes) -> list[bytes]:
        return [_key(name, group) for group in range(len(self._pools))]

    def _is_known(self, name: bytes) -> bool:
        return all(key in self._known for key in self._keys(name))

    def _is_fetched(self, name: bytes) -> bool:
        return any(key in self._fetching for key in self._keys(name))


def _key(name: bytes, group: int) -> bytes:
    return name + bytes((group,))
