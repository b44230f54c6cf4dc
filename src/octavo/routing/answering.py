"""An answer that has begun, on its way to the client: its pieces, its end, and what it cost. Knows no HTTP server."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from octavo.bench.connection import Failure
from octavo.errors import DeadlineExceeded, OctavoError, TierFailed
from octavo.protocol.sse import DONE, error_event
from octavo.routing.bill import Usage
from octavo.routing.course import Course, Outcome, shown_cost
from octavo.routing.heard import response_id_of

if TYPE_CHECKING:
    from octavo.routing.attempts import Begun
    from octavo.routing.gateway import Gateway
    from octavo.routing.places import Place

__all__ = ["Answering"]

_logger = logging.getLogger(__name__)

_LAST_S = 1.0
"""How long the end of a connection's answer is waited for behind a stream's [DONE], before it is given up."""


class Answering:
    """An answer that has begun. Whoever has it reads it to its end, or leaves."""

    def __init__(
        self, gateway: Gateway, course: Course, begun: Begun, place: Place, deadline_s: float
    ) -> None:
        self.course = course
        self.status = begun.status
        self.content_type = begun.content_type
        self.streams = begun.events is not None
        self._gateway = gateway
        self._begun = begun
        self._place = place
        self._attempt = course.attempts[-1]
        self._deadline_s = deadline_s
        self._data: bytes | None = begun.data
        course.response_id = response_id_of(begun.data)
        if course.heard is not None:
            course.heard += begun.data
        if begun.events is None:
            self._ends("answered" if begun.status < 400 else "refused", begun.usage)

    async def read(self) -> bytes:
        """The next piece; b"" after the last one. A stream that breaks ends with an error's event."""
        if self._data is not None:
            data, self._data = self._data, None
            if data:
                return data
        events = self._begun.events
        if events is None or self._attempt.outcome is not None:
            return b""
        while True:
            if events.failure is not None:
                return await self._broken(events.failure)
            if events.done:
                return await self._last()
            left_s = self._deadline_s - self._gateway.now_s()
            limit_s = min(self._place.tier.stall_s, left_s)
            try:
                async with asyncio.timeout(max(limit_s, 0.0)):
                    piece = await self._begun.incoming.read()
            except TimeoutError:
                name = self._place.tier.name
                if limit_s < left_s:
                    return await self._broken(TierFailed(f"nothing came for {limit_s:g} s"))
                error = DeadlineExceeded(
                    f"The time for this request was over before {name} had ended its answer."
                )
                return await self._broken(error, blame=False)
            except Failure as failure:
                return await self._broken(TierFailed(str(failure)))
            data = events.feed(piece) if piece else events.close()
            if data and self.course.heard is not None:
                self.course.heard += data
            if data:
                return data

    def leave(self) -> None:
        """The client has gone. Calling it at the end is harmless."""
        if self._attempt.outcome is None:
            self._begun.connection.abort()
            self._ends("left", self._usage())

    async def _last(self) -> bytes:
        """Its cost, as a comment that clients pass over, and the end."""
        try:
            async with asyncio.timeout(_LAST_S):
                while not self._begun.incoming.whole and await self._begun.incoming.read():
                    pass
            self._place.upstream.give_back(self._begun.connection)
        except (TimeoutError, Failure):
            self._begun.connection.abort()
        self._ends("answered", self._usage())
        return b": x-octavo-cost: " + shown_cost(self.course.cost).encode() + b"\n\n" + DONE

    async def _broken(self, error: OctavoError, *, blame: bool = True) -> bytes:
        self._begun.connection.abort()
        name = self._place.tier.name
        if blame:
            _logger.warning("the tier %s broke off an answer: %s", name, error)
            error = TierFailed(f"The tier {name} broke off its answer: {error}.")
        self._ends("broken", self._usage(), str(error), blame=blame)
        return error_event(error) + DONE

    def _usage(self) -> Usage | None:
        events = self._begun.events
        if events is None or events.usage is not None:
            return None if events is None else events.usage
        return Usage(self.course.asked.prompt_tokens, 0, events.chunks, estimated=True)

    def _ends(self, outcome: Outcome, usage: Usage | None, message: str = "", *, blame: bool = True) -> None:
        self._gateway.end_attempt(self._place, self._attempt, outcome, usage, message, blame=blame)
        self._gateway.end(self.course)
