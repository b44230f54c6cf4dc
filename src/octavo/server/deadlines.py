"""When a request's time is over: from its body's arrival to the end of its answer. Knows clocks and tasks, no route.

A route wrapped in `in_time` is given up at its deadline wherever it waits: for the tokens of a long text, a grammar's
verdict, a slot, or the rest of an answer. What outlives the route (a stream, a response in the background) takes the
deadline along and keeps it itself.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from octavo.errors import DeadlineExceeded
from octavo.protocol.bounds import BOUNDS
from octavo.server.in_process import PROFILE
from octavo.server.request_note import RequestNote, note_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from octavo.engine.stream import Stream
    from octavo.server.serving import Serving

__all__ = ["Deadline", "closing_in_time", "deadline_of", "in_time", "set_deadline", "take_deadline"]

_DEADLINE, _TIMER = "octavo.deadline", "octavo.timer"
Stage = Literal["preparing", "waiting", "answering"]
"""How far a request was: not yet in the engine, there without an output, or with some."""


class Deadline(NamedTuple):
    """Of one request."""

    at_s: float
    """On the event loop's clock."""
    seconds: float
    """From the arrival."""
    limit: Literal["request", "server"]
    """Who has set it."""
    serving: Serving
    note: RequestNote

    def exceeded(self) -> DeadlineExceeded:
        """Count it; the error that the client is told."""
        stage = _stage(self.note)
        self.serving.metrics.on_deadline(self.limit, stage)
        whose = "The request's timeout" if self.limit == "request" else "This server's limit for a request"
        done = {
            "preparing": "it was ready for the engine",
            "waiting": "its answer had begun",
            "answering": "its answer was complete",
        }
        return DeadlineExceeded(
            f"{whose}, {self.seconds:g} s, was over before {done[stage]}; ask for less, or allow it more time."
        )


def set_deadline(request: Request, serving: Serving, timeout_s: float | None) -> None:
    """The body of `request` has come, and asks for an answer within `timeout_s`. The server's own limit counts where it
    is shorter; for a line of a batch it does not: that has the batch's time, and takes only what others leave. Raises
    InvalidParameter."""
    if timeout_s is not None:
        BOUNDS["timeout"].check("timeout", timeout_s)
    most = None if PROFILE in request.scope else serving.request_timeout_s
    given = [seconds for seconds in (timeout_s, most) if seconds is not None]
    if not given:
        return
    seconds = min(given)
    at_s = asyncio.get_running_loop().time() + seconds
    limit: Literal["request", "server"] = "request" if seconds == timeout_s else "server"
    request.scope[_DEADLINE] = Deadline(at_s, seconds, limit, serving, note_of(request.scope))
    timer: asyncio.Timeout | None = request.scope.get(_TIMER)
    if timer is not None:
        timer.reschedule(at_s)


def deadline_of(scope: Mapping[str, Any]) -> Deadline | None:
    """The request's."""
    found: Deadline | None = scope.get(_DEADLINE)
    return found


def take_deadline(request: Request) -> Deadline | None:
    """The same, for who keeps it from now on: the route itself is not given up any more."""
    timer: asyncio.Timeout | None = request.scope.get(_TIMER)
    if timer is not None and not timer.expired():
        timer.reschedule(None)
    return deadline_of(request.scope)


def in_time(endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """`endpoint`, which is cancelled at its request's deadline: DeadlineExceeded instead of an answer."""

    @functools.wraps(endpoint)
    async def timed(request: Request) -> Response:
        timer = request.scope[_TIMER] = asyncio.timeout(None)
        try:
            async with timer:
                return await endpoint(request)
        except TimeoutError:
            deadline = deadline_of(request.scope)
            if not timer.expired() or deadline is None:
                raise
            raise deadline.exceeded() from None

    return timed


@asynccontextmanager
async def closing_in_time(outputs: Stream, deadline: Deadline | None) -> AsyncIterator[Callable[[], bool]]:
    """Close `outputs` at the deadline: their reader meets the end, and what still runs is aborted. Gives a function:
    has that happened?"""
    if deadline is None:
        yield lambda: False
        return
    late = False

    async def close() -> None:
        nonlocal late
        loop = asyncio.get_running_loop()
        await asyncio.sleep(deadline.at_s - loop.time())
        late = True
        await outputs.aclose()

    closer = asyncio.create_task(close())
    try:
        yield lambda: late and outputs.abandoned
    finally:
        closer.cancel()


def _stage(note: RequestNote) -> Stage:
    if note.engine_id is None:
        return "preparing"
    usage = None if note.answer is None else note.answer.usage
    return "answering" if usage is not None and (usage.first_output_s or usage.completion) else "waiting"
