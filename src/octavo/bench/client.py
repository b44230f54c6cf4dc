"""One run of a workload against a server: each request at its time, and what came of it. Computes no statistics.

Open loop: a request is sent at its intended time whatever the server does; nothing waits for a slot. What is late is
sent late and recorded with both times, so that the waiting that a slow server causes cannot be left out ("coordinated
omission": Gil Tene, "How NOT to Measure Latency", 2013). Closed loop: each client waits for its answer, as the
workload's `after` says. Where a prompt holds the answer of an earlier request, the server's own is put in.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import math
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from octavo.bench.connection import ClockNs
from octavo.bench.flight import Due, Flight, Sender
from octavo.bench.pacing import Alarm
from octavo.bench.pool import allow_many_files
from octavo.bench.prompts import Bodies
from octavo.bench.record import ClientSample, Run, ServerSample
from octavo.bench.sampler import quiet_collector, sample
from octavo.bench.target import Target
from octavo.workload.agenda import Agenda
from octavo.workload.request import Request

__all__ = ["Progress", "Scrape", "run"]

Scrape = Callable[[], Awaitable[dict[str, float] | None]]
"""Asks the server for its own numbers; None where it has none."""
SCRAPE_S = 1.0
"""From one reading of them to the next; there is one more at the end."""
LAST_SCRAPE_S = 2.0
"""So long that one may take."""
AHEAD_US = 1_000_000
"""How long before its time a request's body is made, so that making it delays no sending."""
_TURN_NS = 500_000
"""How long the client may make bodies before it looks at its sockets again."""


@dataclass
class Progress:
    """How a run goes, while it does."""

    elapsed_s: float = 0.0
    offered: int = 0
    """Requests whose time has come."""
    running: int = 0
    done: int = 0
    """Ended, well or not."""
    errors: Counter[str] = field(default_factory=Counter)
    """By kind."""
    output_tokens: int = 0
    """Of answers that ended, and an event each of those that run."""
    input_tokens: int = 0
    recent_ttft_s: deque[float] = field(default_factory=lambda: deque(maxlen=200))
    """Of the last answers, from sending to the first text."""
    late_us: int = 0
    """How late the last request was sent."""
    retried: int = 0
    """Requests that were sent once more, on a new connection: the server had closed the old one."""
    made_up: int = 0
    """Answers within later prompts that are not the server's own: it did not tell them in a form that can be used, or
    they were too many to keep."""


async def run(
    target: Target,
    requests: Iterable[Request],
    *,
    clients: int | None = None,
    rate: float | None = None,
    seed: int = 0,
    timeout_s: float = 600.0,
    max_s: float | None = None,
    drain_s: float | None = None,
    on_change: Callable[[Progress], None] | None = None,
    scrape: Scrape | None = None,
    stop: asyncio.Event | None = None,
    clock_ns: ClockNs = time.perf_counter_ns,
) -> Run:
    """Sends the requests and returns what happened, in order of their indices.

    `clients`: of a closed loop, as the workload's arrivals say; None for an open one. `rate` and `seed` are noted in
    the result. `timeout_s` is of each request, from its sending. After `max_s` seconds nothing more is sent; what
    runs may end within `drain_s` more (None: as long as it may). When `stop` is set, or the caller is cancelled
    (Ctrl-C), the run ends at once and returns what there is. What ran then, or was due and not sent, is in it with
    the error `client`.
    `on_change` is called ten times a second. Raises nothing for what servers do: that is in the exchanges.
    """
    began = datetime.now(UTC)
    allow_many_files()
    pool = target.pool(clock_ns)
    sender = Sender(target, pool, timeout_s=timeout_s, clock_ns=clock_ns)
    running = _Running(sender, Bodies(target.shape), requests, clients, clock_ns)
    server: list[ServerSample] = []
    with quiet_collector():
        running.begin()
        watch = sample(
            running.samples,
            lambda: len(running.flights),
            start_ns=sender.start_ns,
            clock_ns=clock_ns,
            also=lambda: running.tell(on_change),
        )
        helpers = [asyncio.create_task(watch)]
        if scrape is not None:
            helpers.append(asyncio.create_task(_scrape(scrape, server, sender.now_us)))
        try:
            stopped = await _wait(running, stop, max_s, drain_s)
        finally:
            running.close()
            for task in helpers:
                task.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            if scrape is not None:
                await _scrape_once(scrape, server, sender.now_us, timeout_s=LAST_SCRAPE_S)
            await sender.close()
            await pool.close()
    running.tell(on_change)
    exchanges = sorted((flight.exchange() for flight in running.ended), key=lambda one: one.index)
    return Run(
        seed=seed,
        rate=rate,
        clients=clients,
        began=began.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        end_us=max((one.end_us for one in exchanges), default=0),
        stopped=stopped,
        exchanges=exchanges,
        client=running.samples,
        server=server,
    )


async def _wait(
    running: _Running, stop: asyncio.Event | None, max_s: float | None, drain_s: float | None
) -> str | None:
    """Until the run is over. Why it was stopped, if it was."""
    done = asyncio.create_task(running.done.wait())
    halt = asyncio.create_task(stop.wait()) if stop is not None else None
    both = {done} if halt is None else {done, halt}
    try:
        await asyncio.wait(both, timeout=max_s, return_when=asyncio.FIRST_COMPLETED)
        if done.done():
            running.check()
            return None
        if halt is None or not halt.done():
            reason = f"the limit of {max_s:g} s"
            running.send_no_more(reason)
            await asyncio.wait(both, timeout=drain_s, return_when=asyncio.FIRST_COMPLETED)
            running.give_up(reason)
            return reason
        running.give_up("stopped")
        return "stopped"
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
        running.give_up("interrupted")
        return "interrupted"
    finally:
        for one in both:
            one.cancel()
        await asyncio.gather(*both, return_exceptions=True)


async def _scrape(scrape: Scrape, samples: list[ServerSample], now_us: Callable[[], int]) -> None:
    """At whole multiples of SCRAPE_S, of which a slow answer may take some: it shifts none."""
    loop = asyncio.get_running_loop()
    begun, turn = loop.time(), 0
    while True:
        await _scrape_once(scrape, samples, now_us)
        turn = max(turn + 1, math.ceil((loop.time() - begun) / SCRAPE_S - 1e-6))
        await asyncio.sleep(begun + turn * SCRAPE_S - loop.time())


async def _scrape_once(
    scrape: Scrape, samples: list[ServerSample], now_us: Callable[[], int], timeout_s: float | None = None
) -> None:
    """The server looked at its counters somewhere between question and answer: the middle is the best guess."""
    asked_us = now_us()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            values = await scrape()
            if values is not None:
                samples.append(ServerSample((asked_us + now_us()) // 2, values))


class _Running:
    """The state of a run."""

    def __init__(
        self,
        sender: Sender,
        bodies: Bodies,
        requests: Iterable[Request],
        clients: int | None,
        clock_ns: ClockNs,
    ) -> None:
        self.flights: set[Flight] = set()
        """Requests that were sent, or for which a connection is made."""
        self.ended: list[Flight] = []
        self.samples: list[ClientSample] = []
        self.done = asyncio.Event()
        self._sender = sender
        self._bodies = bodies
        self._agenda = Agenda(requests, clients=clients)
        self._ready: list[Due] = []
        """Taken from the agenda ahead of their time, with their bodies."""
        self._clients = clients
        self._client_of: dict[int, int] = {}
        """In a closed loop: whose a request is, until its follower is known."""
        self._begun = 0
        self._failed: dict[int, int] = {}
        """Requests without a good answer: their sessions."""
        self._alarm = Alarm(self._turn, clock_ns)
        self._clock_ns = clock_ns
        self._progress = Progress()
        self._tokens_ended = 0
        self._over = False
        self._problem: Exception | None = None

    def begin(self) -> None:
        """Makes the first requests ready; then time begins."""
        self._prepare(0, None)
        self._sender.start_ns = self._clock_ns()
        self._turn()

    def check(self) -> None:
        """Raises what went wrong in a callback: a workload that cannot be read, or a fault of ours."""
        if self._problem is not None:
            raise self._problem

    def tell(self, on_change: Callable[[Progress], None] | None) -> None:
        """Brings the progress up to date."""
        progress = self._progress
        progress.elapsed_s = self._sender.now_us() / 1e6
        progress.running = len(self.flights)
        progress.retried, progress.made_up = self._sender.retried, self._bodies.made_up
        progress.output_tokens = self._tokens_ended + sum(flight.reader.texts for flight in self.flights)
        if on_change is not None:
            on_change(progress)

    def send_no_more(self, reason: str) -> None:
        """What runs may end."""
        self._over = True
        self._alarm.unset()
        now = self._sender.now_us()
        for due in sorted(self._ready):
            if due.at_us <= now:
                self._not_sent(due, "client", f"not sent: {reason}")
        for at_us, request in self._agenda.take(now):
            self._not_sent(self._due(at_us, request), "client", f"not sent: {reason}")
        if not self.flights:
            self.done.set()

    def give_up(self, reason: str) -> None:
        """Ends all that runs."""
        if not self._over:
            self.send_no_more(reason)
        for flight in list(self.flights):
            flight.give_up("client", f"given up: {reason}")

    def close(self) -> None:
        """Nothing of it is left in the loop."""
        self._over = True
        self._alarm.close()
        for flight in list(self.flights):
            flight.give_up("client", "given up")

    def _turn(self) -> None:
        """Sends what is due, makes ready what is near, and sets the alarm."""
        if self._over:
            return
        try:
            more = self._prepare(self._sender.now_us(), self._clock_ns() + _TURN_NS)
        except Exception as error:  # noqa: BLE001 - it is raised where the run is awaited
            self._problem = error
            self._over = True
            self.done.set()
            return
        if more:
            self._alarm.set(0)
            return
        times = [self._ready[0].at_us] if self._ready else []
        if (at := self._agenda.next_us) is not None:
            times.append(at - AHEAD_US)
        if times:
            self._alarm.set(self._sender.start_ns + min(times) * 1000)
        elif not self.flights:
            self.done.set()

    def _prepare(self, now_us: int, until_ns: int | None) -> bool:
        """Returns whether there is more to do at once. Without `until_ns` nothing is sent."""
        ready = self._ready
        while True:
            if until_ns is not None:
                while ready and ready[0].at_us <= now_us:
                    self._send(heapq.heappop(ready))
                    now_us = self._sender.now_us()
            taken = next(self._agenda.take(now_us + AHEAD_US), None)
            if taken is None:
                return False
            due = self._due(*taken)
            if self._falls_out(due.request):
                self._not_sent(due, "skipped", "the answer before it failed")
                self._ended(due.request, due.at_us, good=False)
            else:
                due.body = self._bodies.body(due.request)
                heapq.heappush(ready, due)
            if until_ns is not None:
                if self._clock_ns() > until_ns:
                    return True
                now_us = self._sender.now_us()

    def _due(self, at_us: int, request: Request) -> Due:
        due = Due(at_us, request.index, request)
        if self._clients is not None:
            if request.after is None:
                due.client, self._begun = self._begun, self._begun + 1
            else:
                due.client = self._client_of.pop(request.after, None)
            if due.client is not None:
                self._client_of[request.index] = due.client
        return due

    def _falls_out(self, request: Request) -> bool:
        """The session has no answer to go on from. A client of a closed loop begins its next session all the same."""
        return request.after is not None and self._failed.get(request.after) == request.session

    def _send(self, due: Due) -> None:
        self._progress.offered += 1
        flight = Flight(self._sender, due, self._landed, self._bodies.keeps(due.request))
        self.flights.add(flight)
        flight.start()
        if flight.sent_us is not None:
            self._progress.late_us = flight.sent_us - due.at_us

    def _landed(self, flight: Flight) -> None:
        self.flights.discard(flight)
        self._note(flight)
        if self._over:
            if not self.flights:
                self.done.set()
            return
        request, good = flight.due.request, flight.error is None
        if good:
            self._bodies.answered(request.index, flight.reader.text, flight.reader.token_ids)
        self._ended(request, flight.end_us, good=good)
        self._alarm.set(0)

    def _ended(self, request: Request, at_us: int, *, good: bool) -> None:
        if not good:
            self._failed[request.index] = request.session
        self._agenda.answered(request.index, at_us)

    def _not_sent(self, due: Due, error: str, message: str) -> None:
        self._progress.offered += 1
        flight = Flight(self._sender, due, self._landed, None)
        flight.error, flight.message, flight.end_us = error, message, due.at_us
        flight.settle()
        self._note(flight)

    def _note(self, flight: Flight) -> None:
        self.ended.append(flight)
        progress, reader = self._progress, flight.reader
        progress.done += 1
        if flight.error is not None:
            progress.errors[flight.error] += 1
        self._tokens_ended += reader.texts if reader.output_tokens is None else reader.output_tokens
        progress.input_tokens += reader.input_tokens or 0
        if reader.first_text_us is not None and flight.sent_us is not None:
            progress.recent_ttft_s.append((reader.first_text_us - flight.sent_us) / 1e6)
