"""Answers on their way to a client: streamed or whole, and given up when the client leaves. Knows ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from functools import partial

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo.engine.stream import Stream
from octavo.errors import OctavoError
from octavo.scheduling.outputs import SequenceOutput
from octavo.server.answer import Answer
from octavo.server.connections import CONNECTION, Connection
from octavo.server.deadlines import closing_in_time, deadline_of
from octavo.server.request_note import note_error

__all__ = ["STREAM_HEADERS", "AnswerStream", "while_connected", "whole_response"]

# A proxy that gathers events would undo streaming.
STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


@asynccontextmanager
async def while_connected(outputs: Stream, receive: Receive) -> AsyncIterator[Stream]:
    """`outputs`, which end early when the client disconnects. At the end, what still runs is aborted."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        await outputs.aclose()

    watcher = asyncio.create_task(watch())
    try:
        async with aclosing(outputs):
            yield outputs
    finally:
        watcher.cancel()


async def whole_response(outputs: Stream, answer: Answer, receive: Receive) -> Response:
    """Wait for all of it. Raises ServerError when the engine gives the request up."""
    taken: list[SequenceOutput] = []
    async with while_connected(outputs, receive):
        async for output in outputs:
            answer.note_arrival(output)
            if error := answer.failure(output):
                raise error
            taken.append(output)
    return Response(answer.whole(taken), media_type="application/json")


class AnswerStream(Response):
    """An answer that is sent as the outputs come.

    The status waits for the first output, so that an error before it has its own. What gathers while the client
    takes its time goes out in one write.
    """

    def __init__(self, outputs: Stream, answer: Answer) -> None:
        super().__init__(headers=STREAM_HEADERS, media_type=answer.reply.media_type)
        del self.headers["content-length"]
        self._outputs = outputs
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection: Connection | None = scope.get(CONNECTION)
        if connection is not None:
            self._outputs.bound(
                self._answer.serving.stream_buffer_bytes, partial(connection.drop, "buffer_full")
            )
        deadline = deadline_of(scope)
        async with (
            while_connected(self._outputs, receive) as outputs,
            closing_in_time(outputs, deadline) as late,
        ):
            await self._send(
                outputs, scope, send, lambda: deadline.exceeded() if deadline and late() else None
            )

    async def _send(
        self, outputs: Stream, scope: Scope, send: Send, ended: Callable[[], OctavoError | None]
    ) -> None:
        """`ended`: what has ended the outputs from here, if not their reader."""
        started, chunks, last = False, list[bytes](), b""
        async for output in outputs:
            self._answer.note_arrival(output)
            if error := self._answer.failure(output):
                if not started:
                    raise error
                note_error(scope, error)
                last = self._answer.reply.failure(error)
                break
            chunks.append(self._answer.chunks(output))
            if outputs.pending:
                continue
            data = b"".join(chunks)
            chunks.clear()
            if data:
                if not started:
                    await self._start(send)
                    started = True
                await send({"type": "http.response.body", "body": data, "more_body": True})
        if outputs.abandoned:
            error = ended()
            if error is None:  # nobody is there to read an end
                return
            if not started:
                raise error
            note_error(scope, error)
            last = self._answer.reply.failure(error)
        if not started:  # an API that has nothing to say of an empty answer but its end
            await self._start(send)
        if not last:
            last = self._answer.closing()
        await send({"type": "http.response.body", "body": b"".join(chunks) + last, "more_body": False})

    async def _start(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
