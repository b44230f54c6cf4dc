"""Several replicas behind a router, each on a clock of its own. Knows no workload.

A replica is left alone until one of its steps can matter to somebody: an answer ends, or a request comes to it. Among
those steps always the one that begins first is taken, so nothing that one replica does can come too late for another:
a request that an answer brings about is due when that answer ends or later, and all steps that were taken began before.
Whoever is within a step takes nothing in before it ends.

A replica that dies loses its memory and the step that it is in: what that step would have brought is told to nobody.
Its requests go on elsewhere from what was delivered of them, as after a restart of a server's engine (prompt and answer
so far are computed again); where nobody is left they wait for the next start, and fail where there will be none.

Replicas may come and go with the load. One that is to go gets nothing new, and goes when its last answer has ended.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Sequence
from enum import IntEnum

import msgspec

from octavo.engine.messages import Add
from octavo.memory.accounting import Report
from octavo.scheduling.outputs import SequenceOutput
from octavo.simulation.account import account
from octavo.simulation.failures import Failure, Failures
from octavo.simulation.journal import Journal
from octavo.simulation.ledger import Ledger, Place
from octavo.simulation.replica import Progress, Replica
from octavo.simulation.routers import Router
from octavo.simulation.scaling import Autoscaler, Scaling
from octavo.timing.clock import microseconds

__all__ = ["Cluster"]


class _Event(IntEnum):
    """What happens to replicas; of events at one time in this order."""

    DIES = 0
    STARTS = 1
    SCALES = 2


class Cluster:
    """Replicas with equal settings, and who gets what."""

    def __init__(
        self,
        replicas: Sequence[Replica],
        router: Router | None = None,
        *,
        failures: Failures | None = None,
        scaling: Scaling | None = None,
        restart: Callable[[int], Replica] | None = None,
    ) -> None:
        """`router` is needed where there are several, `restart` where some fail or come and go: a new engine for a
        place. With `scaling` there is a replica for each of the most that may serve. Raises ValueError without them."""
        if not replicas or (router is None and len(replicas) > 1):
            raise ValueError(f"a cluster of {len(replicas)} replicas needs replicas and a router")
        if (failures is not None or scaling is not None) and restart is None:
            raise ValueError("replicas that fail, or come and go, need a way to start again")
        if scaling is not None and scaling.most != len(replicas):
            raise ValueError(f"{len(replicas)} replicas are not the {scaling.most} that may serve")
        self.replicas = list(replicas)
        self.capacity = replicas[0].capacity
        self._router = router
        self._restart = restart
        self._loads = dict.fromkeys(range(len(replicas) if scaling is None else scaling.least), 0)
        """What the router was told of those that serve: answers that are to come."""
        self._leaving: dict[int, int] = {}
        """The same of those that get nothing new, and go when they have answered."""
        self._failures = failures
        self._dies: list[Failure | None] = [None] * len(replicas)
        """What each replica does not survive."""
        self._starts: dict[int, int] = {}
        """Which are to serve, and when."""
        self._events: list[tuple[int, _Event, int]] = []
        """What happens when, to which; and some that will not happen any more."""
        self._autoscaler = None if scaling is None else Autoscaler(scaling)
        if scaling is not None:
            heapq.heappush(self._events, (microseconds(scaling.every_s), _Event.SCALES, 0))
        self._journals = [Journal() for _ in replicas] if failures is not None else []
        """Of each replica: what it has not answered yet."""
        self._held: list[Add] = []
        """Nobody serves, and these wait for who starts next."""
        self._ledger = Ledger(len(replicas))
        self.failed = 0
        """Replicas that died so far."""
        self.started = 0
        """Replicas that were started because of the load."""
        for place in self._loads:
            self._ledger.pay(place, 0)
            self._await_failure(place, 0)
        self._answers: list[tuple[int, int]] = []
        """Answers that it was not told of yet: when, and by whom."""
        self._quiet_us: list[int | None] = [None] * len(replicas)
        """Until when each replica can be left alone; None for one without work."""
        for place, replica in enumerate(self.replicas):
            replica.place = place
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
        self._hear(at_us)
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
        """When a replica dies or starts next, or somebody looks at the load; None where that will not be."""
        while self._events and self._is_off(*self._events[0]):
            heapq.heappop(self._events)
        return self._events[0][0] if self._events else None

    def _is_off(self, at_us: int, event: _Event, place: int) -> bool:
        """It was called off: the replica went, or was taken back, before."""
        if event is _Event.DIES:
            failure = self._dies[place]
            return failure is None or failure.at_us != at_us
        return event is _Event.STARTS and self._starts.get(place) != at_us

    @property
    def holds(self) -> bool:
        """Requests wait for a replica to start; or for the end of one whose last step nobody will hear of."""
        return bool(self._held) or any(self._journals)

    def happen(self) -> None:
        """What is due at `event_us`, when all steps that begin before were taken as far as anybody can notice them."""
        at_us, event, place = heapq.heappop(self._events)
        if event is _Event.DIES:
            failure = self._dies[place]
            assert failure is not None
            self._die(place, failure)
        elif event is _Event.STARTS:
            self._start(place, at_us)
        else:
            self._scale(at_us)

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

    def _hear(self, at_us: int) -> None:
        """The router is told of answers until now; who was only waiting for the last of them goes."""
        while self._answers and self._answers[0][0] <= at_us:
            ended_us, place = heapq.heappop(self._answers)
            if place in self._loads:
                self._loads[place] -= 1
                continue
            self._leaving[place] -= 1
            if not self._leaving[place]:
                self._leave(place, ended_us)

    def _await_failure(self, place: int, at_us: int) -> None:
        failure = None if self._failures is None else self._failures.after(place, at_us)
        self._dies[place] = failure
        if failure is not None:
            heapq.heappush(self._events, (failure.at_us, _Event.DIES, place))

    def _await_start(self, place: int, at_us: int) -> None:
        self._starts[place] = at_us
        heapq.heappush(self._events, (at_us, _Event.STARTS, place))

    def _die(self, place: int, failure: Failure) -> None:
        self.failed += 1
        if self._quiet_us[place] is not None:
            self._catch_up(place, failure.at_us)
        self._hear(failure.at_us)
        self._dies[place] = None
        if place not in self._loads and place not in self._leaving:
            return  # its last answer ended just now, and it went
        self._renew(place)
        self._answers = [one for one in self._answers if one[1] != place]
        heapq.heapify(self._answers)
        if self._leaving.pop(place, None) is not None:
            self._ledger.release(place, failure.at_us)
        else:
            del self._loads[place]
            if failure.until_us is not None:
                self._await_start(place, failure.until_us)
        for add in self._journals[place].take():
            self.enter(add, failure.at_us)

    def _renew(self, place: int) -> None:
        """The engine there ends; the next one knows nothing of what it had."""
        self._ledger.retire(place, self.replicas[place])
        assert self._restart is not None
        self.replicas[place] = self._restart(place)
        self.replicas[place].place = place
        self._quiet_us[place] = None

    def _start(self, place: int, at_us: int) -> None:
        del self._starts[place]
        self._loads[place] = 0
        self._loads = dict(sorted(self._loads.items()))
        self._await_failure(place, at_us)
        held, self._held = self._held, []
        for add in held:
            self.enter(add, at_us)

    def _leave(self, place: int, at_us: int) -> None:
        del self._leaving[place]
        self._dies[place] = None
        self._ledger.release(place, at_us)
        self._renew(place)

    def _scale(self, at_us: int) -> None:
        """Somebody looks at the load, and has replicas come or go."""
        assert self._autoscaler is not None
        scaling = self._autoscaler.scaling
        heapq.heappush(self._events, (at_us + max(microseconds(scaling.every_s), 1), _Event.SCALES, 0))
        self._hear(at_us)
        wanted = self._autoscaler.wanted(sum(self._loads.values()) + len(self._held), at_us)
        more = wanted - len(self._loads) - len(self._starts)
        for _ in range(more):
            self._add_one(at_us, microseconds(scaling.cold_start_s))
        for _ in range(-more):
            self._remove_one(at_us)

    def _add_one(self, at_us: int, cold_us: int) -> None:
        """Somebody who was about to go stays, or somebody is started."""
        if self._leaving:
            place = min(self._leaving)
            self._loads[place] = self._leaving.pop(place)
            self._loads = dict(sorted(self._loads.items()))
            return
        place = next(
            place
            for place in range(len(self.replicas))
            if place not in self._loads and place not in self._starts
        )
        self.started += 1
        self._ledger.pay(place, at_us)
        self._await_start(place, at_us + cold_us)

    def _remove_one(self, at_us: int) -> None:
        """Who would start last, or else who has the fewest answers to give; of several the last."""
        if self._starts:
            place = max(self._starts, key=lambda place: (self._starts[place], place))
            del self._starts[place]
            self._ledger.release(place, at_us)
            return
        place = min(self._loads, key=lambda place: (self._loads[place], -place))
        self._leaving[place] = self._loads.pop(place)
        if not self._leaving[place]:
            self._leave(place, at_us)

    def _hold(self, add: Add, at_us: int) -> None:
        """Until somebody starts; if nobody ever will, it fails now."""
        if self.event_us is not None:
            self._held.append(add)
            return
        error = "no replica is left, and none will start again."
        children = [child for child in range(add.params.n) if child not in add.finished]
        items = [
            SequenceOutput(add.request_id, child, finish_reason="error", error=error) for child in children
        ]
        self._progress.append(Progress.told(tuple(items), at_us))

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
            progress = msgspec.structs.replace(progress, items=tuple(items), ends_s=progress.ends_s[:steps])
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
        reports = self.reports()
        return account([report for report, _ in reports], [queried for _, queried in reports])

    def reports(self) -> list[tuple[Report, int]]:
        """The same of each engine, those that are no more among them, and the prompts' tokens that it looked up."""
        return self._ledger.reports(self.replicas)

    def places(self, at_us: int) -> list[Place]:
        """What the replicas did until now, by their places."""
        return self._ledger.places(self.replicas, at_us)

    def readings(self, at_us: int) -> dict[str, float]:
        """By the names of octavo.bench.readings, of all together. Where replicas come and go: how many serve, and how
        many are paid for."""
        self._hear(at_us)
        found = self._ledger.readings(self.replicas, self._loads, len(self._held), at_us)
        if self._journals or self._autoscaler is not None:
            found["replicas"] = len(self._loads)
        if self._autoscaler is not None:
            found["replicas_paid"] = self._ledger.paid()
        return found
