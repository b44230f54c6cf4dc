"""Several replicas behind a router, each on a clock of its own. Knows no workload.

A replica is left alone until one of its steps can matter to somebody: an answer ends, or a request comes to it. Among
those steps always the one that begins first is taken, so nothing that one replica does can come too late for another:
a request that an answer brings about is due when that answer ends or later, and all steps that were taken began before.
Whoever is within a step takes nothing in before it ends.

A replica that dies loses its memory and the step that it is in: what that step would have brought is told to nobody.
Its requests go on elsewhere from what was delivered of them, as after a restart of a server's engine (prompt and answer
so far are computed again); where nobody is left they wait for the next start, and fail where there will be none.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Sequence

import msgspec

from octavo.engine.messages import Add
from octavo.memory.accounting import Report
from octavo.scheduling.outputs import SequenceOutput
from octavo.simulation.account import account
from octavo.simulation.failures import Failure, Failures
from octavo.simulation.journal import Journal
from octavo.simulation.replica import Progress, Replica
from octavo.simulation.routers import Router
from octavo.timing.clock import microseconds

__all__ = ["Cluster"]


class Cluster:
    """Replicas with equal settings, and who gets what."""

    def __init__(
        self,
        replicas: Sequence[Replica],
        router: Router | None = None,
        *,
        failures: Failures | None = None,
        restart: Callable[[int], Replica] | None = None,
    ) -> None:
        """`router` is needed where there are several, `restart` where some fail: a new engine for a place.
        Raises ValueError without them."""
        if not replicas or (router is None and len(replicas) > 1):
            raise ValueError(f"a cluster of {len(replicas)} replicas needs replicas and a router")
        if failures is not None and restart is None:
            raise ValueError("replicas that fail need a way to start again")
        self.replicas = list(replicas)
        self.capacity = replicas[0].capacity
        self._router = router
        self._restart = restart
        self._loads = dict.fromkeys(range(len(replicas)), 0)
        """What the router was told of those that serve: answers that are to come."""
        self._failures = failures
        self._dies: list[Failure | None] = [None] * len(replicas)
        """What each replica does not survive."""
        self._events: list[tuple[int, int]] = []
        """When a replica dies or starts again, and which."""
        self._journals = [Journal() for _ in replicas] if failures is not None else []
        """Of each replica: what it has not answered yet."""
        self._held: list[Add] = []
        """Nobody serves, and these wait for who starts next."""
        self._gone = dict[str, float]()
        """What engines that are no more had counted."""
        self._gone_accounts: list[tuple[Report, int]] = []
        self.failed = 0
        """Replicas that died so far."""
        for place in self._loads:
            self._await_failure(place, 0)
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
        if not self._loads:
            self._hold(add, at_us)
            return
        place = self._router.choose(add.prompt, self._loads) if self._router else 0
        self._loads[place] += add.params.n - len(add.finished)
        if self._journals:
            self._journals[place].enter(add)
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

    @property
    def event_us(self) -> int | None:
        """When a replica dies or starts next; None where that will not be."""
        return self._events[0][0] if self._events else None

    @property
    def holds(self) -> bool:
        """Requests wait for a replica to start; or for the end of one whose last step nobody will hear of."""
        return bool(self._held) or any(self._journals)

    def happen(self) -> None:
        """What is due at `event_us`, when all steps that begin before were taken as far as anybody can notice them."""
        at_us, place = heapq.heappop(self._events)
        failure = self._dies[place]
        assert failure is not None
        if failure.at_us == at_us:
            self._die(place, failure)
        else:
            self._start(place, at_us)

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

    def _await_failure(self, place: int, at_us: int) -> None:
        failure = None if self._failures is None else self._failures.after(place, at_us)
        self._dies[place] = failure
        if failure is not None:
            heapq.heappush(self._events, (failure.at_us, place))

    def _die(self, place: int, failure: Failure) -> None:
        self.failed += 1
        if self._quiet_us[place] is not None:
            self._catch_up(place, failure.at_us)
        dead = self.replicas[place]
        for name, value in _counters(dead).items():
            self._gone[name] = self._gone.get(name, 0) + value
        self._gone_accounts.append(_account(dead))
        dead.engine.close()
        assert self._restart is not None
        self.replicas[place] = self._restart(place)
        self._quiet_us[place] = None
        del self._loads[place]
        self._answers = [one for one in self._answers if one[1] != place]
        heapq.heapify(self._answers)
        if failure.until_us is not None:
            heapq.heappush(self._events, (failure.until_us, place))
        for add in self._journals[place].take():
            self.enter(add, failure.at_us)

    def _start(self, place: int, at_us: int) -> None:
        self._loads[place] = 0
        self._loads = dict(sorted(self._loads.items()))
        self._await_failure(place, at_us)
        held, self._held = self._held, []
        for add in held:
            self.enter(add, at_us)

    def _hold(self, add: Add, at_us: int) -> None:
        """Until somebody starts; if nobody ever will, it fails now."""
        if self._events:
            self._held.append(add)
            return
        error = "no replica is left, and none will start again."
        children = [child for child in range(add.params.n) if child not in add.finished]
        items = [
            SequenceOutput(add.request_id, child, finish_reason="error", error=error) for child in children
        ]
        self._progress.append(Progress(tuple(items), (at_us / 1e6,)))

    def _delivered(self, place: int, progress: Progress) -> Progress | None:
        """What of it was there before the replica died; None where nothing was."""
        failure = self._dies[place]
        steps = len(progress.ends_s)
        if failure is not None:
            steps = bisect_right(progress.ends_s, failure.at_us, key=microseconds)
            self.replicas[place].busy_s -= max(progress.ends_s[-1] - failure.at_us / 1e6, 0.0)
        if not steps:
            return None
        if steps < len(progress.ends_s):
            items = [
                msgspec.structs.replace(item, samples=item.samples[:steps], finish_reason=None)
                for item in progress.items
            ]
            progress = Progress(tuple(items), progress.ends_s[:steps])
        self._journals[place].note(progress.items)
        return progress

    def _note(self, place: int, progress: Progress) -> None:
        if self._journals:
            delivered = self._delivered(place, progress)
            if delivered is None:
                return
            progress = delivered
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
        reports = [*self._gone_accounts, *map(_account, self.replicas)]
        return account([report for report, _ in reports], [queried for _, queried in reports])

    def readings(self) -> dict[str, float]:
        """By the names of octavo.bench.readings, of all together, and how many serve; KV use is the mean of these."""
        serving = [self.replicas[place].stats for place in self._loads]
        counted = [_counters(replica) for replica in self.replicas]
        blocks = sum(stats.blocks_total for stats in serving)
        totals = {
            name: sum(one[name] for one in counted) + self._gone.get(name, 0)
            for name in counted[0]
            if self.replicas[0].guesses or name not in ("drafted_tokens", "accepted_tokens")
        }
        return {
            **totals,
            **({"replicas": len(serving)} if self._journals else {}),
            "running": sum(stats.running for stats in serving),
            "waiting": sum(stats.waiting for stats in serving) + len(self._held),
            "kv_use": sum(stats.blocks_used for stats in serving) / blocks if blocks else 0.0,
            "busy_s": totals["busy_s"] / len(self.replicas),
        }


def _counters(replica: Replica) -> dict[str, float]:
    stats = replica.stats
    return {
        "drafted_tokens": stats.draft_tokens,
        "accepted_tokens": stats.accepted_tokens,
        "prefix_queried_tokens": stats.prefix_queried_tokens,
        "prefix_hit_tokens": stats.prefix_hit_tokens,
        "preemptions": stats.preemptions,
        "prompt_tokens": stats.prompt_tokens,
        "generated_tokens": stats.generation_tokens,
        "steps": stats.steps,
        "step_tokens": replica.scheduler.counters.step_tokens,
        "busy_s": replica.busy_s,
    }


def _account(replica: Replica) -> tuple[Report, int]:
    return replica.engine.report(), replica.stats.prefix_queried_tokens
