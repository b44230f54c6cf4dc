"""Which replica gets a request: rules over what a gateway knows. Knows loads and prompts, no scheduler and no time."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, get_args

from octavo.config import RouterName
from octavo.workload.draws import Draws

__all__ = [
    "ROUTERS",
    "CacheAware",
    "LeastLoaded",
    "PowerOfTwo",
    "RoundRobin",
    "Router",
]


class Router(Protocol):
    """Chooses by `loads`: of each place whose replica takes requests now, in the order of places, how many it has
    and has not answered, as far as the router was told. Replicas come and go; there is always one."""

    def choose(self, prompt: Sequence[int], loads: Mapping[int, int]) -> int:
        """One of the places in `loads`."""


class RoundRobin:
    """One after another, whatever they have to do."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, prompt: Sequence[int], loads: Mapping[int, int]) -> int:
        chosen = next((place for place in loads if place >= self._next), next(iter(loads)))
        self._next = chosen + 1
        return chosen


class LeastLoaded:
    """Whoever has the fewest; of several the first. A gateway must know all loads for it."""

    def choose(self, prompt: Sequence[int], loads: Mapping[int, int]) -> int:
        return min(loads, key=loads.__getitem__)


class PowerOfTwo:
    """The better of two that are drawn, the first of equals: nearly as good, and asks only two (Mitzenmacher 2001)."""

    def __init__(self, seed: int = 0) -> None:
        self._draws = Draws(seed, "router")

    def choose(self, prompt: Sequence[int], loads: Mapping[int, int]) -> int:
        places = list(loads)
        one = self._drawn(len(places))
        if len(places) == 1:
            return places[one]
        other = (one + 1 + self._drawn(len(places) - 1)) % len(places)
        return min(places[one], places[other], key=loads.__getitem__)

    def _drawn(self, below: int) -> int:
        return min(int(self._draws.uniform() * below), below - 1)


class CacheAware:
    """Whoever was sent the longest beginning of this prompt, unless he has much more to do than others; then the least
    loaded. The gateway remembers what it sent where, in blocks, as SGLang's router does with a tree (Zheng et al.
    2024, arXiv:2312.07104); what a replica has evicted since it does not know."""

    def __init__(
        self, *, block_size: int = 16, cap: float = 1.5, slack: int = 4, most: int = 1 << 20
    ) -> None:
        """`cap`: a replica may have so many times the mean load, and `slack` requests more. `most`: blocks that are
        remembered; the least recently seen are forgotten."""
        self._block_size = block_size
        self._cap = cap
        self._slack = slack
        self._most = most
        self._sent: OrderedDict[bytes, int] = OrderedDict()

    def choose(self, prompt: Sequence[int], loads: Mapping[int, int]) -> int:
        names = list(self._names(prompt))
        chosen = None
        for name in reversed(names):
            if (chosen := self._sent.get(name)) is not None:
                break
        limit = self._cap * sum(loads.values()) / len(loads) + self._slack
        if chosen is None or chosen not in loads or loads[chosen] > limit:
            chosen = min(loads, key=loads.__getitem__)
        for name in names:
            self._sent[name] = chosen
            self._sent.move_to_end(name)
        while len(self._sent) > self._most:
            self._sent.popitem(last=False)
        return chosen

    def _names(self, prompt: Sequence[int]) -> Iterator[bytes]:
        ids, parent = array("i", prompt), b""
        for start in range(0, len(ids) // self._block_size * self._block_size, self._block_size):
            block = ids[start : start + self._block_size].tobytes()
            parent = hashlib.blake2b(parent + block, digest_size=12).digest()
            yield parent


ROUTERS: dict[RouterName, Callable[[], Router]] = {
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
    "power-of-two": PowerOfTwo,
    "cache-aware": CacheAware,
}
assert set(ROUTERS) == set(get_args(RouterName))
