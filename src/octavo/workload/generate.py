"""A workload's requests, one after another, in order of time. Knows its description, and no server.

Memory is that of the sessions that are open at once (and, for a trace with them, of its file). What a session asks
is drawn by the session's own number: another rate changes when it begins, and not a token of it.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from pathlib import Path

import msgspec

from octavo.errors import WorkloadError
from octavo.timing.clock import microseconds
from octavo.workload.arrivals import Arrivals, Closed, TraceTimes, times_s
from octavo.workload.draws import Draws
from octavo.workload.lengths import Length, draw_delay, draw_length, zipf_sums
from octavo.workload.request import Part, Request
from octavo.workload.spec import PrefixLevel, Tenant, Workload
from octavo.workload.traces import Record, read_trace

__all__ = ["requests_of"]


def requests_of(workload: Workload) -> Iterator[Request]:
    """The requests, ordered by `at_s`, each after the one that it waits for. Raises WorkloadError for a bad trace."""
    if workload.trace is not None:
        path, kind = Path(workload.trace.file), workload.trace.format
        if isinstance(workload.arrivals, Closed):
            made = _closed_trace(workload, workload.arrivals, path, kind)
        else:
            made = _of_trace(workload, path, kind)
    elif isinstance(workload.arrivals, Closed):
        made = _closed(workload, workload.arrivals)
    else:
        assert workload.arrivals is not None
        made = _open(workload, workload.arrivals)
    return itertools.islice(made, workload.requests)


class _Session:
    """A session on its way: what was said so far, and what its next turn is."""

    def __init__(self, workload: Workload, number: int) -> None:
        assert workload.input is not None and workload.output is not None
        seed, self._workload, self.number = workload.seed, workload, number
        self._draws = Draws(seed, "session", number)
        tenant = _tenant(workload, number)
        self._tenant = tenant.name if tenant else None
        self._priority = tenant.priority if tenant else 0
        self._input = (tenant and tenant.input) or workload.input
        self._output = (tenant and tenant.output) or workload.output
        self._parts = _prefix(workload.prefix, seed, Draws(seed, "prefix", number))
        self._said: list[Part] = []
        self._turn = 0
        sessions = workload.sessions
        self._turns = draw_length(sessions.turns, self._draws) if sessions else 1
        first: Length = (sessions and sessions.first) or self._input
        self._next = (draw_length(first, self._draws), draw_length(self._output, self._draws))

    def request(self, index: int, at_us: int, after: int | None, delay_us: int) -> Request:
        """The turn that is next."""
        asked, said = self._next
        name = f"session/{self.number}/{self._turn}"
        self._said.append(Part(f"{name}/asked", asked))
        request = Request(
            index=index,
            at_s=at_us / 1e6,
            after=after,
            delay_s=delay_us / 1e6,
            tenant=self._tenant,
            priority=self._priority,
            session=self.number,
            turn=self._turn,
            parts=(*self._parts, *self._said),
            output_tokens=said,
            seed=self._workload.seed,
        )
        self._said.append(Part(f"{name}/said", said, index))
        self._turn += 1
        return request

    def goes_on(self) -> int | None:
        """Microseconds until the next turn after the answer's end, or None when this was the last."""
        sessions = self._workload.sessions
        if sessions is None or self._turn >= self._turns:
            return None
        tools = sessions.tools
        if tools is not None and self._draws.uniform() < tools.share:
            delay, asked = draw_delay(tools.delay, self._draws), draw_length(tools.tokens, self._draws)
        else:
            delay, asked = draw_delay(sessions.think, self._draws), draw_length(self._input, self._draws)
        said = draw_length(self._output, self._draws)
        if sessions.max_context_tokens is not None:
            before = sum(part.tokens for part in (*self._parts, *self._said))
            if before + asked + said > sessions.max_context_tokens:
                return None
        self._next = (asked, said)
        return microseconds(delay)


def _open(workload: Workload, arrivals: Arrivals) -> Iterator[Request]:
    ends_us = None if workload.duration_s is None else microseconds(workload.duration_s)
    starts = (microseconds(at) for at in times_s(arrivals, Draws(workload.seed, "arrivals")))
    start: int | None = next(starts)
    waiting: list[
        tuple[int, int, _Session, int | None, int]
    ] = []  # when, the tie's order, who, after what, delay
    order, index, number = itertools.count(), 0, 0
    while True:
        while start is not None and (not waiting or start <= waiting[0][0]):
            if ends_us is not None and start >= ends_us:
                start = None
                break
            heapq.heappush(waiting, (start, next(order), _Session(workload, number), None, 0))
            number, start = number + 1, next(starts)
        if not waiting:
            return
        at, _, session, after, delay = heapq.heappop(waiting)
        yield session.request(index, at, after, delay)
        if (pause := session.goes_on()) is not None:
            heapq.heappush(waiting, (at + pause, next(order), session, index, pause))
        index += 1


def _closed(workload: Workload, arrivals: Closed) -> Iterator[Request]:
    """Client c's k-th session has the number k × clients + c."""
    clients = arrivals.clients
    ends_us = None if workload.duration_s is None else microseconds(workload.duration_s)
    waiting: list[tuple[int, int, _Session, int | None, int]] = [
        (microseconds(arrivals.start_over_s * c / clients), c, _Session(workload, c), None, 0)
        for c in range(clients)
    ]
    thoughts = {c: Draws(workload.seed, "think", c) for c in range(clients)}
    order = itertools.count(clients)
    for index in itertools.count():
        if not waiting:
            return
        at, _, session, after, delay = heapq.heappop(waiting)
        yield session.request(index, at, after, delay)
        pause = session.goes_on()
        if pause is None:
            pause = microseconds(draw_delay(arrivals.think, thoughts[session.number % clients]))
            session = _Session(workload, session.number + clients)
            if ends_us is not None and at + pause >= ends_us:
                continue
        heapq.heappush(waiting, (at + pause, next(order), session, index, pause))


def _closed_trace(workload: Workload, arrivals: Closed, path: Path, kind: str) -> Iterator[Request]:
    """A client that is free takes the trace's next session; the trace's times do not matter."""
    ends_us = None if workload.duration_s is None else microseconds(workload.duration_s)
    talks = enumerate(_talks(read_trace(path, kind)))
    waiting: list[tuple[int, int, int, int, list[Record], int | None, int]] = [
        (microseconds(arrivals.start_over_s * c / arrivals.clients), c, c, 0, [], None, 0)
        for c in range(arrivals.clients)
    ]
    thoughts = [Draws(workload.seed, "think", c) for c in range(arrivals.clients)]
    order, index = itertools.count(arrivals.clients), 0
    while waiting:
        at, _, client, session, rest, after, delay = heapq.heappop(waiting)
        if not rest:
            if ends_us is not None and at >= ends_us:
                continue
            session, rest = next(talks, (0, []))
            if not rest:
                return
        record, *rest = rest
        if record.after is not None:
            raise _waits(path, record)
        record = msgspec.structs.replace(record, delay_s=delay / 1e6)
        yield _of_record(workload, path, record, index, at, after, session)
        pause = 0 if rest else microseconds(draw_delay(arrivals.think, thoughts[client]))
        heapq.heappush(waiting, (at + pause, next(order), client, session, rest, index, pause))
        index += 1


def _talks(records: Iterator[Record]) -> Iterator[list[Record]]:
    """A trace's sessions: each record with those that follow it."""
    talk: list[Record] = []
    for record in records:
        if talk and not record.follows:
            yield talk
            talk = []
        talk.append(record)
    yield talk


def _waits(path: Path, record: Record) -> WorkloadError:
    return WorkloadError(
        f"{path}, line {record.line}, waits for another request, so other arrivals cannot be given to it; "
        "leave out the workload's `arrivals`."
    )


def _of_trace(workload: Workload, path: Path, kind: str) -> Iterator[Request]:
    arrivals = workload.arrivals or TraceTimes()
    own = isinstance(arrivals, TraceTimes)
    speed = arrivals.speed if isinstance(arrivals, TraceTimes) else 1.0
    times = iter(()) if own else times_s(arrivals, Draws(workload.seed, "arrivals"))
    ends_us = None if workload.duration_s is None else microseconds(workload.duration_s)
    at, session = 0, -1
    for index, record in enumerate(read_trace(path, kind)):
        session += not record.follows
        after = index - 1 if record.follows else record.after
        if record.follows:
            pass  # at the earliest when the turn before was sent
        elif not own:
            if record.after is not None:
                raise _waits(path, record)
            at = microseconds(next(times))
        elif record.time_us is None:
            raise WorkloadError(
                f"{path}, line {record.line}, has no time; give the workload `arrivals`, such as "
                '{ kind = "poisson", rate = 1.0 }.'
            )
        else:
            at = microseconds(record.time_us / 1e6 / speed)
            if speed != 1.0:  # who waits for an answer thinks faster too
                record = msgspec.structs.replace(record, delay_s=record.delay_s / speed)
        if ends_us is not None and at >= ends_us:
            return
        yield _of_record(workload, path, record, index, at, after, session)


def _of_record(
    workload: Workload, path: Path, record: Record, index: int, at: int, after: int | None, session: int
) -> Request:
    number = session if record.session is None else record.session
    said = record.output_tokens
    if said is None:
        if workload.output is None:
            raise WorkloadError(
                f"{path}, line {record.line}, has no output_tokens; give them, or give the workload an `output`."
            )
        said = draw_length(workload.output, Draws(workload.seed, "output", index))
    tenant = _tenant(workload, number)
    priority = record.priority
    if priority is None:
        priority = tenant.priority if tenant else 0
    return Request(
        index=index,
        at_s=at / 1e6,
        after=after,
        delay_s=record.delay_s,
        tenant=record.tenant or (tenant.name if tenant else None),
        priority=priority,
        session=number,
        turn=record.turn or 0,
        parts=record.parts,
        ids=record.ids,
        text=record.text,
        messages=record.messages,
        given_tokens=record.input_tokens,
        output_tokens=said,
        seed=workload.seed,
    )


def _tenant(workload: Workload, session: int) -> Tenant | None:
    if not workload.tenants:
        return None
    sums = list(itertools.accumulate(tenant.weight for tenant in workload.tenants))
    return workload.tenants[Draws(workload.seed, "tenant", session).weighted(sums)]


def _prefix(levels: tuple[PrefixLevel, ...], seed: int, draws: Draws) -> tuple[Part, ...]:
    """A way down the tree, by the popularity of branches."""
    parts, key = [], "prefix"
    for level in levels:
        key = f"{key}/{draws.weighted(zipf_sums(level.branches, level.exponent))}"
        tokens = (
            level.tokens
            if isinstance(level.tokens, int)
            else draw_length(level.tokens, Draws(seed, "node", key))
        )
        parts.append(Part(key, tokens))
    return tuple(parts)
