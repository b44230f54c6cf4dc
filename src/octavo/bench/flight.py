"""One request on its way: sent, its answer read as it comes, and what came of it. Knows no workload's order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from octavo.bench.connection import ClockNs, Connection, Failure
from octavo.bench.pool import Pool
from octavo.bench.record import Exchange
from octavo.bench.sse import EventParser
from octavo.bench.stream import AnswerReader, Keep, error_message
from octavo.bench.target import Target
from octavo.bench.words import printable
from octavo.workload.request import Request

__all__ = ["Due", "Flight", "Sender"]

_MESSAGE_CHARACTERS = 300
_ERROR_BYTES = 1 << 16
"""Of an answer that is no stream."""


@dataclass(order=True)
class Due:
    """A request, when it should be sent, and its body."""

    at_us: int
    index: int
    request: Request = field(compare=False)
    body: bytes = field(compare=False, default=b"")
    client: int | None = field(compare=False, default=None)
    """Of a closed loop: which one, from 0."""


class Sender:
    """What all requests of a run share."""

    def __init__(
        self, target: Target, pool: Pool, *, timeout_s: float, clock_ns: ClockNs = time.perf_counter_ns
    ) -> None:
        self.pool = pool
        self.timeout_s = timeout_s
        self.start_ns = 0
        """When the run began; its stamps are from here."""
        self.retried = 0
        """Requests that were sent once more: an old connection had ended. Their `connected_us` is of the new one."""
        self._target = target
        self._clock_ns = clock_ns
        self._tasks: set[asyncio.Task[None]] = set()

    def now_us(self) -> int:
        """Since the run's start."""
        return (self._clock_ns() - self.start_ns) // 1000

    def us(self, at_ns: int) -> int:
        """The same of a stamp."""
        return (at_ns - self.start_ns) // 1000

    def request(self, body: bytes) -> bytes:
        """All bytes of it."""
        return self._target.request(body)

    def hide_key(self, message: str) -> str:
        """A message without the key, which some servers repeat; cut."""
        message = printable(self._target.hide_key(message))
        return message if len(message) <= _MESSAGE_CHARACTERS else message[: _MESSAGE_CHARACTERS - 1] + "…"

    def spawn(self, work: asyncio.Task[None]) -> None:
        """Keeps a task until it ends."""
        self._tasks.add(work)
        work.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Connections that are being made are given up."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Flight:
    """A request and its answer: a `connection.Listener`."""

    __slots__ = (
        "_body", "_connection", "_content_type", "_events", "_fresh", "_landed", "_over", "_request_id", "_retried",
        "_sender", "_timeout", "connected_us", "due", "end_us", "error", "headers_us", "message", "reader", "sent_us",
        "started_us", "status",
    )  # fmt: skip

    def __init__(self, sender: Sender, due: Due, landed: Callable[[Flight], None], keep: Keep) -> None:
        """`landed` is called once, at the end."""
        self.due = due
        self.reader = AnswerReader(keep)
        self.started_us: int | None = None
        self.sent_us: int | None = None
        self.connected_us: int | None = None
        self.headers_us: int | None = None
        self.end_us = 0
        self.status: int | None = None
        self.error: str | None = None
        self.message: str | None = None
        self._sender = sender
        self._landed = landed
        self._events = EventParser()
        self._body = bytearray()
        """Of an answer that is no stream."""
        self._content_type = ""
        self._request_id: str | None = None
        self._connection: Connection | None = None
        self._fresh = False
        self._retried = False
        self._over = False
        self._timeout: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Sends it at once where a connection is open, else as soon as there is one."""
        self.started_us = self._sender.now_us()
        loop = asyncio.get_running_loop()
        self._timeout = loop.call_later(self._sender.timeout_s, self._late)
        connection = self._sender.pool.idle()
        if connection is not None:
            self._send(connection)
        else:
            self._sender.spawn(loop.create_task(self._connect()))

    def give_up(self, error: str, message: str) -> None:
        """Ends it from our side."""
        if self._over:
            return
        if self._connection is not None:
            self._connection.abort()
        self._land(self._sender.now_us(), error, message)

    async def _connect(self) -> None:
        try:
            connection, fresh = await self._sender.pool.connect(new=self._retried)
        except Failure as failure:
            if not self._over:
                self._land(self._sender.now_us(), failure.kind, str(failure))
            return
        if self._over:  # it took too long
            self._sender.pool.give_back(connection)
            return
        self._fresh = fresh
        if fresh:
            self.connected_us = self._sender.now_us()
        self._send(connection)

    def _send(self, connection: Connection) -> None:
        self._connection = connection
        data = self._sender.request(self.due.body)
        self.sent_us = self._sender.now_us()
        connection.ask(data, self)

    def _late(self) -> None:
        self.give_up("timeout", f"no whole answer within {self._sender.timeout_s:g} s")

    # What the connection calls.

    def headers(self, status: int, headers: dict[str, str], at_ns: int) -> None:
        """The answer begins."""
        self.headers_us = self._sender.us(at_ns)
        self.status = status
        self.due.body = b""
        self._request_id = headers.get("x-request-id")
        self._content_type = headers.get("content-type", "").partition(";")[0].strip().lower()

    def body(self, data: bytes, at_ns: int) -> None:
        """A part of it."""
        if self.status == 200 and self._content_type != "application/json":
            at_us = self._sender.us(at_ns)
            for event in self._events.feed(data):
                self.reader.read(event, at_us)
        elif len(self._body) < _ERROR_BYTES:
            self._body += data

    def end(self, failure: Failure | None, at_ns: int) -> None:
        """The answer is whole, or there is none."""
        sender, reader = self._sender, self.reader
        if failure is not None and failure.unread and not self._fresh and not self._retried:
            # The server closed a connection that nobody used, just when this request came.
            self._retried = True
            sender.retried += 1
            sender.spawn(asyncio.get_running_loop().create_task(self._connect()))
            return
        at_us = sender.us(at_ns)
        for event in self._events.close():
            reader.read(event, at_us)
        if failure is None and self._connection is not None:
            sender.pool.give_back(self._connection)
        if self.status is not None and self.status != 200:
            said = error_message(bytes(self._body))
            self._land(at_us, "status", f"{self.status}: {said}" if said else str(self.status))
        elif reader.error is not None:
            self._land(at_us, "stream", reader.error)
        elif reader.done_us is not None and (failure is None or reader.finish_reason is not None):
            self._land(reader.done_us, None, None)
        elif failure is not None:
            # Even after [DONE]: llama-cpp-python's server says that, and no reason, where another request came.
            self._land(at_us, failure.kind, str(failure))
        elif reader.finish_reason is not None:
            self._land(at_us, None, None)
        elif self._content_type != "text/event-stream":
            self._land(at_us, "stream", f"the answer is no stream, but {self._content_type or 'nothing'}")
        else:
            self._land(at_us, "stream", "the stream ended without a finish reason and without [DONE]")

    def _land(self, at_us: int, error: str | None, message: str | None) -> None:
        self._over = True
        self.end_us, self.error = at_us, error
        self.message = self._sender.hide_key(message) if message else None
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None
        self._connection = None
        self._body.clear()
        self.reader.close()
        self._landed(self)
        self.settle()

    def settle(self) -> None:
        """Lets go of the prompt: what is left is for the record."""
        request = self.due.request
        self.due.body = b""
        self.reader.forget()
        self.due.request = replace(
            request, parts=(), ids=None, messages=None, text="", given_tokens=request.input_tokens
        )

    def exchange(self) -> Exchange:
        """What came of it, for the record."""
        request, reader = self.due.request, self.reader
        chunks, counted, output_tokens = reader.chunks()
        return Exchange.of(
            request,
            intended_us=self.due.at_us,
            client=self.due.client,
            started_us=self.started_us,
            sent_us=self.sent_us,
            connected_us=self.connected_us,
            headers_us=self.headers_us,
            end_us=self.end_us,
            status=self.status,
            input_tokens=reader.input_tokens,
            cached_tokens=reader.cached_tokens,
            output_tokens=output_tokens,
            reasoning_tokens=reader.reasoning_tokens,
            counted=counted,
            finish_reason=reader.finish_reason,
            error=self.error,
            message=self.message,
            request_id=self._request_id or reader.id,
            chunks=chunks,
        )
