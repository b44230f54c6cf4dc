"""A workload on a simulated replica: what `octavo bench` would record of it. Knows neither costs nor reports."""

from __future__ import annotations

import gc
import heapq
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count

from octavo.bench.record import Chunk, Exchange, Kind, Run, ServerSample
from octavo.bench.ticks import Ticks
from octavo.engine.messages import Add
from octavo.errors import ClientError
from octavo.scheduling.inputs import Service
from octavo.scheduling.outputs import SequenceOutput
from octavo.simulation.asking import Asking
from octavo.simulation.calibrated import HostWork
from octavo.simulation.cluster import Cluster
from octavo.simulation.disaggregated import Disaggregated
from octavo.simulation.prompts import prompt_of
from octavo.simulation.replica import Replica
from octavo.timing.clock import microseconds
from octavo.timing.virtual import only_virtual_time, real_time
from octavo.workload.agenda import Agenda
from octavo.workload.request import Request

__all__ = ["simulate"]

_BEGAN = "1970-01-01T00:00:00Z"
"""Of every run: a virtual clock has no date, and two runs are equal to the last byte."""
_CHARACTERS = 4
"""Of a token: a text that nobody wrote."""
_SAMPLE_US = 1_000_000
_MOST_SAMPLES = 8192
"""Of the server, in a run: then every other one is dropped, and they come half as often."""
_TOLD_EVERY = 1000
"""Events between two calls for who shows how far it is."""
_COLLECTED_EVERY = (100_000, 50, 50)
"""New objects, and collections of them and of those that are left."""
_ONCE = Asking()
_NO_HOST = HostWork()


def simulate(
    served: Replica | Cluster | Disaggregated,
    requests: Iterable[Request],
    *,
    asking: Asking = _ONCE,
    host: HostWork = _NO_HOST,
    clients: int | None = None,
    seed: int = 0,
    rate: float | None = None,
    compact: bool = False,
    on_progress: Callable[[int, float], None] | None = None,
) -> Run:
    """Run until every request has its answer. `asking`: how each is asked. `clients`: of a closed loop. `compact`: keep
    the events of answers as `Ticks` where each has one token, for runs of a million requests.

    `on_progress`: called now and then with requests answered and seconds of virtual time. Every request enters at the
    first step of its replica that begins at its time or later, as a message does that reaches an engine; `host` says
    how long it is on its way there, and each chunk on its way back.
    """
    cluster = Cluster([served]) if isinstance(served, Replica) else served
    with only_virtual_time(), _few_collections():
        return _Simulation(
            cluster, Agenda(requests, clients=clients), asking, host, compact, on_progress
        ).run(
            Run(seed=seed, rate=rate, clients=clients, began=_BEGAN, end_us=0, exchanges=[], sentences=False)
        )


@contextmanager
def _few_collections() -> Iterator[None]:
    """Python's search for garbage in cycles, of which a run makes next to none, comes so often that a tenth of the time
    goes into it. Here it comes seldom."""
    before = gc.get_threshold()
    gc.set_threshold(*_COLLECTED_EVERY)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class _Simulation:
    """One run on its way."""

    def __init__(
        self,
        cluster: Cluster | Disaggregated,
        agenda: Agenda,
        asking: Asking,
        host: HostWork,
        compact: bool,
        on_progress: Callable[[int, float], None] | None,
    ) -> None:
        self._cluster = cluster
        self._agenda = agenda
        self._asking = asking
        self._compact = compact
        self._host = host
        self._coming: list[tuple[int, int, Add, Exchange]] = []
        """Sent, and not with an engine yet: when they will be."""
        self._on_progress = on_progress
        self._open: dict[str, Exchange] = {}
        self._answers: dict[str, int] = {}
        """Of those requests that are to have several: how many have not ended."""
        self._done: list[Exchange] = []
        self._server: list[ServerSample] = []
        self._sample_due_us = 0
        self._every_us = _SAMPLE_US

    def run(self, run: Run) -> Run:
        """Fill it."""
        cluster = self._cluster
        for events in count():
            step_us, next_us = cluster.next_us, self._next_us
            if (event_us := self._event_us(step_us, next_us)) is not None:
                if self._sample_due_us < event_us:
                    self._sample(self._sample_due_us)
                else:
                    cluster.happen()
                    self._take()
            elif next_us is not None and (step_us is None or next_us <= step_us):
                if self._sample_due_us < next_us:
                    self._sample(self._sample_due_us)
                else:
                    self._let_in(next_us)
            elif step_us is None:
                break
            elif self._sample_due_us <= step_us:
                self._sample(self._sample_due_us)
            else:
                cluster.advance()
                self._take()
            if self._on_progress is not None and events % _TOLD_EVERY == 0:
                self._tell(min((at_us for at_us in (step_us, next_us) if at_us is not None), default=0))
        run.end_us = max((one.end_us for one in self._done), default=0)
        self._server.append(ServerSample(run.end_us, self._cluster.readings(run.end_us)))
        self._tell(run.end_us)
        run.exchanges = sorted(self._done, key=lambda one: one.index)
        run.server = self._server
        run.memory = cluster.account()
        return run

    def _event_us(self, step_us: int | None, next_us: int | None) -> int | None:
        """When a replica dies or starts, if that comes before all else and anybody is there to notice."""
        event_us = self._cluster.event_us
        if event_us is None or (step_us is None and next_us is None and not self._cluster.holds):
            return None
        others = [at_us for at_us in (step_us, next_us) if at_us is not None]
        return event_us if event_us <= min(others, default=event_us) else None

    @property
    def _next_us(self) -> int | None:
        """When the next request is sent, or is with an engine."""
        sent_us = self._agenda.next_us
        if self._coming and (sent_us is None or self._coming[0][0] < sent_us):
            return self._coming[0][0]
        return sent_us

    def _tell(self, now_us: int) -> None:
        if self._on_progress is not None:
            with real_time():
                self._on_progress(len(self._done), now_us / 1e6)

    def _let_in(self, until_us: int) -> None:
        for at_us, request in self._agenda.take(until_us):
            exchange = Exchange.of(request, intended_us=at_us, sent_us=at_us, end_us=at_us, counted="usage")
            exchange.chunks = Ticks(_CHARACTERS) if self._compact else []
            if not self._send(request, exchange):
                self._done.append(exchange)
                self._agenda.answered(request.index, at_us)
        while self._coming and self._coming[0][0] <= until_us:
            enters_us, _, add, exchange = heapq.heappop(self._coming)
            self._open[add.request_id] = exchange
            self._cluster.enter(add, enters_us)
            self._take()

    def _send(self, request: Request, exchange: Exchange) -> bool:
        """Send the request to an engine; one that can never fit is refused as the server's edge would."""
        prompt = prompt_of(request)
        params = self._asking.params(request)
        exchange.input_tokens = len(prompt)
        try:
            self._cluster.capacity.check(prompt, params)
        except ClientError as error:
            exchange.error, exchange.status, exchange.message = "status", 400, str(error)
            return False
        service = Service(priority=request.priority, tenant=request.tenant or "")
        enters_us = exchange.intended_us + microseconds(self._host.before_s(len(prompt)))
        add = Add(str(request.index), prompt, params, enters_us / 1e6, service=service)
        heapq.heappush(self._coming, (enters_us, request.index, add, exchange))
        return True

    def _take(self) -> None:
        """Note what steps have brought."""
        together, later_s = self._asking.n > 1, self._host.per_chunk_s
        for progress in self._cluster.take_progress():
            ends_us, first = progress.ends_us, progress.first
            until = first + len(progress.ends_s)
            places: dict[str, int] = {}
            for item in progress.items:
                exchange = self._open[item.request_id]
                if later_s:
                    place = places.setdefault(item.request_id, len(places))
                    later_us = microseconds(self._host.after_s(place))
                    stepped_us = progress.ends_us[progress.first : progress.first + len(progress.ends_s)]
                    ends_us, first = array("q", [one + later_us for one in stepped_us]), 0
                    until = len(ends_us)
                _note(exchange, item, ends_us, first, until, together=together)
                if item.finish_reason is not None and self._ends(item.request_id):
                    _finish(exchange, ends_us[until - 1])
                    del self._open[item.request_id]
                    self._done.append(exchange)
                    self._agenda.answered(exchange.index, exchange.end_us)

    def _ends(self, request_id: str) -> bool:
        """One of its answers has ended: was it the last?"""
        if self._asking.n == 1:
            return True
        left = self._answers.get(request_id, self._asking.n) - 1
        if left:
            self._answers[request_id] = left
        else:
            del self._answers[request_id]
        return not left

    def _sample(self, at_us: int) -> None:
        """As things stand when all steps that began before have brought what they bring."""
        self._cluster.catch_up(at_us)
        self._take()
        self._server.append(ServerSample(at_us, self._cluster.readings(at_us)))
        if len(self._server) >= _MOST_SAMPLES:
            del self._server[1::2]
            self._every_us *= 2
        self._sample_due_us += self._every_us


def _note(
    exchange: Exchange, item: SequenceOutput, ends_us: array[int], first: int, until: int, *, together: bool
) -> None:
    """A step's tokens, or those of several equal steps, `first` to `until` of `ends_us`: one each. `together`: what
    several answers of the request bring in a step is one event."""
    tokens, chunks = len(item.samples), exchange.chunks
    if item.cached_tokens:
        exchange.cached_tokens = item.cached_tokens
    if isinstance(chunks, Ticks) and (together or tokens > until - first):
        exchange.chunks = chunks = list(chunks)
    if isinstance(chunks, Ticks):
        if tokens:
            chunks.extend(ends_us, first, until)
    else:
        assert isinstance(chunks, list)
        if until - first > 1:
            chunks += [Chunk(at_us, 1, _CHARACTERS, Kind.ANSWER) for at_us in ends_us[first:until]]
        elif together and tokens and chunks and chunks[-1].at_us == ends_us[first]:
            chunks[-1].tokens += tokens
            chunks[-1].characters += tokens * _CHARACTERS
        elif tokens:
            chunks.append(Chunk(ends_us[first], tokens, tokens * _CHARACTERS, Kind.ANSWER))
    if item.finish_reason == "error":
        exchange.error, exchange.message = "status", item.error
        exchange.status = 400 if item.refused else 500
    elif item.finish_reason is not None:
        exchange.finish_reason = item.finish_reason


def _finish(exchange: Exchange, end_us: int) -> None:
    exchange.end_us = end_us
    if exchange.error is not None:
        exchange.finish_reason = None
        return
    exchange.status = 200
    chunks = exchange.chunks
    if isinstance(chunks, Ticks):
        exchange.output_tokens = len(chunks)
        chunks.finished = True
        return
    exchange.output_tokens = sum(chunk.tokens for chunk in chunks)
    if chunks:
        chunks[-1].kind |= Kind.FINISH
