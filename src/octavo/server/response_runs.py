"""Responses that are made whether anybody waits or not, and their events for whoever follows. Knows no route and no
storage."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

from octavo.engine.stream import Stream
from octavo.errors import ServerError
from octavo.protocol.responses_reply import ResponsesReply
from octavo.server.answer import Answer
from octavo.server.deadlines import Deadline, closing_in_time

__all__ = ["ResponseRun", "ResponseRuns"]

_logger = logging.getLogger(__name__)

RUN_BYTES = 16 << 20
"""Of the events of one response; of more, the oldest are forgotten."""
SENT_BYTES = 64 << 10
ENDED_BYTES = 32 << 20
"""Of the events of all that have ended."""


class ResponseRun:
    """One of them. `events` are kept where they were asked for when it was made; `ended` is called at
    its end."""

    def __init__(
        self,
        outputs: Stream,
        answer: Answer,
        reply: ResponsesReply,
        *,
        followed: bool,
        ended: Callable[[], None] = lambda: None,
        deadline: Deadline | None = None,
    ) -> None:
        self.reply = reply
        self.followed = followed
        self.nbytes = 0
        self._outputs = outputs
        self._answer = answer
        self._ended = ended
        self._deadline = deadline
        self._events: list[bytes] = []
        self._first = 0
        """The number of the first event that is kept."""
        self._over = False
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Until its end. It never raises; cancelled, it ends as it is."""
        reply = self.reply
        self._tell(reply.queued())
        try:
            async with (
                aclosing(self._outputs) as outputs,
                closing_in_time(outputs, self._deadline) as late,
            ):
                async for output in outputs:
                    self._answer.note_arrival(output)
                    if error := self._answer.failure(output):
                        self._tell(reply.failure(error))
                        return
                    self._tell(self._answer.chunks(output))
                if self._deadline is not None and late():
                    self._tell(reply.failure(self._deadline.exceeded()))
                    return
            self._tell(reply.cancelled() if self._outputs.abandoned else self._answer.closing())
        except Exception as error:
            _logger.exception("response %s failed", reply.reply_id)
            self._tell(reply.failure(error))
        finally:
            self._over = True
            self._changed.set()
            self._ended()

    async def cancel(self) -> None:
        """Let it end soon, cancelled."""
        await self._outputs.aclose()

    async def follow(self, number: int) -> AsyncIterator[bytes]:
        """The events from `number` on, as they come, until its end. Raises ServerError for what is forgotten."""
        while True:
            changed = self._changed
            if number < self._first:
                raise ServerError(
                    f"The events before {self._first} are not kept any more; get the response itself."
                )
            events = self._next(number)
            if events:
                number += len(events)
                yield b"".join(events)
            elif self._over:
                return
            else:
                await changed.wait()

    def _next(self, number: int) -> list[bytes]:
        """Events from `number` on, not many more than `SENT_BYTES`: what goes out at once is copied for each reader."""
        nbytes, last = 0, number - self._first
        while last < len(self._events) and nbytes < SENT_BYTES:
            nbytes += len(self._events[last])
            last += 1
        return self._events[number - self._first : last]

    def _tell(self, data: bytes) -> None:
        if not self.followed or not data:
            return
        events = [event + b"\n\n" for event in data.split(b"\n\n")[:-1]]
        self._events += events
        self.nbytes += len(data)
        while self.nbytes > RUN_BYTES and len(self._events) > 1:
            self.nbytes -= len(self._events.pop(0))
            self._first += 1
        self._changed.set()
        self._changed = asyncio.Event()


class ResponseRuns:
    """All that run, and the events of the last that have ended."""

    def __init__(self) -> None:
        self._runs: dict[str, ResponseRun] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def get(self, response_id: str) -> ResponseRun | None:
        """One that runs, or that has ended and whose events are still there."""
        return self._runs.get(response_id)

    def running(self, response_id: str) -> bool:
        return response_id in self._tasks

    def start(self, run: ResponseRun) -> None:
        response_id = run.reply.reply_id
        self._runs[response_id] = run
        task = self._tasks[response_id] = asyncio.create_task(run.run())
        task.add_done_callback(self._ended(response_id))

    async def cancel(self, response_id: str) -> None:
        """End it and wait for its end; one that does not run is left as it is."""
        task = self._tasks.get(response_id)
        if task is not None:
            await self._runs[response_id].cancel()
            await asyncio.wait([task])

    def forget(self, response_id: str) -> None:
        """Its events are not wanted any more."""
        if response_id not in self._tasks:
            self._runs.pop(response_id, None)

    async def settle(self) -> None:
        """Wait for the end of all; who calls this has seen to it that they end."""
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    def _ended(self, response_id: str) -> Callable[[asyncio.Task[None]], None]:
        def ended(_: asyncio.Task[None]) -> None:
            del self._tasks[response_id]
            if not self._runs[response_id].followed:
                del self._runs[response_id]
            kept = [name for name in self._runs if name not in self._tasks]
            nbytes = sum(self._runs[name].nbytes for name in kept)
            for name in kept:
                if nbytes <= ENDED_BYTES:
                    break
                nbytes -= self._runs.pop(name).nbytes

        return ended
