"""The one order of all sequences: who runs first, and from its other end who is preempted. Knows no memory.

A sequence's place is, from what counts most: whether it takes only what others leave (`batch`), its priority (a lower
number is earlier, as in vLLM) less one for each while that it has waited, its tenant's virtual time (Virtual Token
Counter, Sheng et al. 2024, arXiv:2401.00588: tokens that were computed for it; one that was idle catches up with the
least of the others, but for a step's worth, so that its first prompt need not take turns with a flood), the same of
the tenant's user, its TTFT deadline, its arrival.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence as Items
from heapq import heapify, heappop, heapreplace

from octavo.scheduling.sequence import Request, Sequence

__all__ = ["Order", "Rank", "Waiting"]

Rank = tuple[bool, int, float, float, float, int, int]


class Order:
    """Ranks sequences; the lowest rank is first."""

    def __init__(self, aging_s: float, head_start: int = 0) -> None:
        """`aging_s`: after how many seconds a request counts as one priority earlier; 0 for never. `head_start`: tokens
        that a tenant or user may be ahead of the others when it comes back."""
        self._aging_s = aging_s
        self._head_start = head_start
        self._served: dict[tuple[str, ...], float] = {}
        """Virtual time of each active tenant, (tenant,), and user, (tenant, user)."""
        self._active = Counter[tuple[str, ...]]()
        """Requests of each that have not ended."""
        self._idle: dict[tuple[str, ...], float] = {}
        self._kinds = Counter[tuple[object, ...]]()
        """Requests that differ in nothing but their arrival, by what they have in common."""
        self.now_s = 0.0

    @property
    def tenants(self) -> int:
        """How many have requests that have not ended."""
        return sum(len(name) == 1 for name in self._active)

    def enter(self, request: Request) -> None:
        """A request comes. One whose tenant was idle does not bring along the time that it could have had."""
        for name in (request.tenant[:1], request.tenant):
            if not self._active[name]:
                others = [served for other, served in self._served.items() if _siblings(other, name)]
                least = min(others) - self._head_start if others else 0.0
                self._served[name] = max(self._idle.pop(name, least), least)
            self._active[name] += 1
        self._kinds[_kind(request)] += 1

    def leave(self, request: Request) -> None:
        """A request ended."""
        kind = _kind(request)
        self._kinds[kind] -= 1
        if not self._kinds[kind]:
            del self._kinds[kind]
        for name in (request.tenant[:1], request.tenant):
            self._active[name] -= 1
            if not self._active[name]:
                del self._active[name]
                served = self._served.pop(name)
                if any(_siblings(other, name) for other in self._served):
                    self._idle[name] = served
                else:  # nobody is there whom it could be ahead of
                    self._idle = {
                        other: one for other, one in self._idle.items() if not _siblings(other, name)
                    }

    @property
    def plain(self) -> bool:
        """Do all requests differ in nothing but their arrival? Then sequences keep the order that they come in."""
        return len(self._kinds) <= 1

    def charge(self, request: Request, tokens: int) -> None:
        """`tokens` are computed for a request."""
        for name in (request.tenant[:1], request.tenant):
            self._served[name] += tokens

    def priority(self, request: Request) -> tuple[bool, int]:
        """Its class: what no fairness and no deadline can change."""
        aged = int((self.now_s - request.add.arrival_s) / self._aging_s) if self._aging_s else 0
        return request.targets.slack_only, request.add.service.priority - max(aged, 0)

    def rank(self, sequence: Sequence) -> Rank:
        """Its place now."""
        if self.plain:
            return (False, 0, 0.0, 0.0, *sequence.order)
        request = sequence.request
        tenant = request.tenant
        served = self._served
        return (*self.priority(request), served[tenant[:1]], served[tenant], *sequence.order)

    def outranked(
        self, one: Sequence, running: Items[Sequence], slots: int, blocks: int, all_slots: int
    ) -> list[Sequence]:
        """Who of those that run (in the order of now) must give way to `one`, which waits for `slots` and `blocks` that
        are not there: the last ones first, and none where that cannot be enough.

        A sequence gives way to an earlier class; and to one of the same class if its tenant holds more than its part of
        all slots, and the other's less.
        """
        held = Counter(sequence.request.tenant[0] for sequence in running)
        part = all_slots / max(self.tenants, 1)
        ours, own_class = one.request.tenant[0], self.priority(one.request)
        victims: list[Sequence] = []
        for other in reversed(running):
            if slots <= 0 and blocks <= 0:
                break
            theirs, its_class = other.request.tenant[0], self.priority(other.request)
            fair = ours != theirs and held[theirs] > part and held[ours] < int(part)
            if own_class > its_class or (own_class == its_class and not fair):
                break
            victims.append(other)
            held[theirs] -= 1
            slots -= 1
            blocks -= min(len(table.blocks) for table in other.tables)
        return victims if slots <= 0 and blocks <= 0 else []

    def check(self, requests: int) -> None:
        """Prove that `requests` have entered and not left. Raises AssertionError."""
        tenants = sum(count for name, count in self._active.items() if len(name) == 1)
        assert tenants == requests, f"{tenants} requests are in the order, {requests} there"
        assert self._served.keys() == self._active.keys()


def _kind(request: Request) -> tuple[object, ...]:
    return (request.targets.slack_only, request.targets.ttft_s, request.add.service.priority, *request.tenant)


def _siblings(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Do they compete on the same level: two tenants, or two users of one tenant?"""
    return one[:-1] == other[:-1] and len(one) == len(other)


class Waiting:
    """Sequences without a slot. Finding the first few costs by how many tenants and priorities there are, not by how
    many wait."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._queues: dict[tuple[object, ...], list[Sequence]] = {}
        """Whose order among themselves never changes, with these."""

    def __len__(self) -> int:
        return sum(map(len, self._queues.values())) if self._queues else 0

    def __iter__(self) -> Iterator[Sequence]:
        for queue in self._queues.values():
            yield from queue

    def add(self, sequence: Sequence) -> None:
        insort(self._queues.setdefault(_queue_of(sequence), []), sequence, key=_static)

    def remove(self, sequence: Sequence) -> None:
        """Raises ValueError for one that does not wait."""
        name = _queue_of(sequence)
        queue = self._queues.get(name, [])
        at = bisect_left(queue, sequence.order, key=_static)
        if at == len(queue) or queue[at] is not sequence:
            raise ValueError("the sequence does not wait")
        del queue[at]
        if not queue:
            del self._queues[name]

    def ranked(self, slack_only: bool) -> Iterator[Sequence]:
        """Of those that take only slack, or of the others, all in the order of now. They may be removed, and others
        added, meanwhile: an added one that would have come already is not given any more."""
        mine = [(name, queue[0]) for name, queue in self._queues.items() if name[0] is slack_only]
        heads = [(self._order.rank(head), name) for name, head in mine]
        heapify(heads)
        while heads:
            rank, name = heads[0]
            queue = self._queues.get(name, [])
            at = bisect_left(queue, rank[-3:], key=_static)
            if at < len(queue) and queue[at].order == rank[-3:]:
                yield queue[at]
            queue = self._queues.get(name, [])
            at = bisect_right(queue, rank[-3:], key=_static)
            if at < len(queue):
                heapreplace(heads, (self._order.rank(queue[at]), name))
            else:
                heappop(heads)


def _queue_of(sequence: Sequence) -> tuple[object, ...]:
    request = sequence.request
    return (request.targets.slack_only, request.add.service.priority, *request.tenant)


def _static(sequence: Sequence) -> tuple[float, int, int]:
    return sequence.order
