"""Several replicas behind a router, each on a clock of its own. Knows no workload.

Always the replica that is furthest behind goes on, so nothing that one does can come too late for another: a request
that an answer brings about is due when that answer ends or later, and no clock has passed that moment but within a
step, and whoever is within a step takes nothing in before it ends.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from octavo.engine.messages import Add
from octavo.simulation.replica import Progress, Replica
from octavo.simulation.routers import Router
from octavo.timing.clock import microseconds

__all__ = ["Cluster"]


class Cluster:
    """Replicas with equal settings, and who gets what."""

    def __init__(self, replicas: Sequence[Replica], router: Router | None = None) -> None:
        """`router` is needed where there are several. Raises ValueError without it."""
        if not replicas or (router is None and len(replicas) > 1):
            raise ValueError(f"a cluster of {len(replicas)} replicas needs replicas and a router")
        self.replicas = tuple(replicas)
        self.capacity = replicas[0].capacity
        self._router = router
        self._loads = [0] * len(replicas)
        """What the router was told: answers that are to come."""
        self._answers: list[tuple[int, int]] = []
        """Answers that it was not told of yet: when, and by whom."""
        self._busy: list[tuple[int, int]] = []
        """Of each replica that has work: how far its clock is, and its place."""

    @property
    def now_us(self) -> int | None:
        """How far the replica is that is furthest behind; None where all are idle."""
        return self._busy[0][0] if self._busy else None

    @property
    def alone(self) -> bool:
        """At most one has work: nobody can bring about something for another."""
        return len(self._busy) <= 1

    def enter(self, add: Add, at_us: int) -> None:
        """A request comes at this time; times never go back."""
        while self._answers and self._answers[0][0] <= at_us:
            _, place = heapq.heappop(self._answers)
            self._loads[place] -= 1
        place = self._router.choose(add.prompt, self._loads) if self._router else 0
        self._loads[place] += add.params.n
        replica = self.replicas[place]
        if replica.idle:
            replica.clock.advance_to(max(replica.clock.now_s(), at_us / 1e6))
            heapq.heappush(self._busy, (microseconds(replica.clock.now_s()), place))
        replica.add(add)

    def advance(self, until_us: int | None, *, one_step: bool = False) -> Progress:
        """The next step of whoever is furthest behind, or several equal ones before `until_us`."""
        at_us, place = self._busy[0]
        replica = self.replicas[place]
        progress = replica.advance(at_us if one_step else until_us)
        now_us = microseconds(replica.clock.now_s())
        for item in progress.items:
            if item.finish_reason is not None:
                heapq.heappush(self._answers, (now_us, place))
        if replica.idle:
            heapq.heappop(self._busy)
        else:
            heapq.heapreplace(self._busy, (now_us, place))
        return progress

    def readings(self) -> dict[str, float]:
        """By the names of octavo.bench.readings, of all together; KV use is their mean."""
        all_ = [replica.stats for replica in self.replicas]
        blocks = sum(stats.blocks_total for stats in all_)
        guessed = {
            "drafted_tokens": sum(stats.draft_tokens for stats in all_),
            "accepted_tokens": sum(stats.accepted_tokens for stats in all_),
        }
        return {
            **(guessed if self.replicas[0].guesses else {}),
            "running": sum(stats.running for stats in all_),
            "waiting": sum(stats.waiting for stats in all_),
            "kv_use": sum(stats.blocks_used for stats in all_) / blocks,
            "prefix_queried_tokens": sum(stats.prefix_queried_tokens for stats in all_),
            "prefix_hit_tokens": sum(stats.prefix_hit_tokens for stats in all_),
            "preemptions": sum(stats.preemptions for stats in all_),
            "prompt_tokens": sum(stats.prompt_tokens for stats in all_),
            "generated_tokens": sum(stats.generation_tokens for stats in all_),
            "busy_s": sum(replica.busy_s for replica in self.replicas) / len(self.replicas),
        }
