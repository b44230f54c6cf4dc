"""Several replicas behind a router, each on a clock of its own. Knows no workload.

A replica is left alone until one of its steps can matter to somebody: an answer ends, or a request comes to it. Among
those steps always the one that begins first is taken, so nothing that one replica does can come too late for another:
a request that an answer brings about is due when that answer ends or later, and all steps that were taken began before.
Whoever is within a step takes nothing in before it ends.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from octavo.engine.messages import Add
from octavo.simulation.account import account
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
        self._quiet_us: list[int | None] = [None] * len(replicas)
        """Until when each replica can be left alone; None for one without work."""
        self._ahead: list[tuple[int, int]] = []
        """These, with their places, and some that do not hold any more."""
        self._progress: list[Progress] = []

    @property
    def next_us(self) -> int | None:
        """When the next step begins of which somebody else can notice anything, of all replicas; None where all are
        idle."""
        while self._ahead and self._ahead[0][0] != self._quiet_us[self._ahead[0][1]]:
            heapq.heappop(self._ahead)  # it was put off, or another one comes before it
        return self._ahead[0][0] if self._ahead else None

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
        else:
            self._catch_up(place, at_us)
        replica.add(add)
        self._look(place)

    def advance(self) -> None:
        """The steps of one replica up to `next_us`, and the one that begins then."""
        if self.next_us is not None:
            _, place = heapq.heappop(self._ahead)
            self._quiet_us[place] = None
            self._note(place, self.replicas[place].advance())
            self._look(place)

    def catch_up(self, until_us: int) -> None:
        """All steps of all replicas that begin before this time, which is at most `next_us`."""
        for place, quiet_us in enumerate(self._quiet_us):
            if quiet_us is not None:
                self._catch_up(place, until_us)
                self._look(place)

    def take_progress(self) -> list[Progress]:
        """What all steps since the last call have brought; those of one replica in their order."""
        progress, self._progress = self._progress, []
        return progress

    def _catch_up(self, place: int, until_us: int) -> None:
        if (progress := self.replicas[place].catch_up(until_us)) is not None:
            self._note(place, progress)

    def _note(self, place: int, progress: Progress) -> None:
        self._progress.append(progress)
        now_us = microseconds(progress.ends_s[-1])
        for item in progress.items:
            if item.finish_reason is not None:
                heapq.heappush(self._answers, (now_us, place))

    def _look(self, place: int) -> None:
        replica = self.replicas[place]
        quiet_us = None if replica.idle else replica.quiet_until_us
        if quiet_us is not None and quiet_us != self._quiet_us[place]:
            heapq.heappush(self._ahead, (quiet_us, place))
        self._quiet_us[place] = quiet_us

    def account(self) -> dict[str, float]:
        """What the memory of all was good for since the start, by the names of octavo.bench.memory."""
        queried = [replica.stats.prefix_queried_tokens for replica in self.replicas]
        return account([replica.engine.report() for replica in self.replicas], queried)

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
            "steps": sum(stats.steps for stats in all_),
            "step_tokens": sum(replica.scheduler.counters.step_tokens for replica in self.replicas),
            "busy_s": sum(replica.busy_s for replica in self.replicas) / len(self.replicas),
        }
