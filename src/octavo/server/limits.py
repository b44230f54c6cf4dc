"""What a connection may cost: size and time of a head and of a body. Knows HTTP's bytes, not what they ask.

uvicorn bounds neither a request's head nor the time it takes to come, so both are bounded here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, cast

import httptools
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from octavo.errors import OctavoError, Overloaded
from octavo.protocol.errors import RequestRefused
from octavo.server.auth import KEYLESS
from octavo.server.connections import CONNECTION, Connection, Connections
from octavo.server.dialects import answer_error, request_id_headers
from octavo.server.errors import error_response
from octavo.server.request_log import log_refusal
from octavo.server.request_note import error_word, note_of

__all__ = ["BODY_S", "MAX_BODY_BYTES", "BoundedProtocol", "discard_body", "read_body"]

MAX_HEAD_BYTES = 64 << 10
"""Request line and headers."""
MAX_BODY_BYTES = 32 << 20
HEAD_S = 20.0
"""From the connection, or from a later request's first byte, to the end of the head."""
BODY_S = 60.0
"""From the end of the head to the end of the body."""
_STATUSES = frozenset(HTTPStatus)
MAX_PIPELINED = 32
"""Requests that may wait behind the one that is being answered."""
LINGER_S = 2.0
"""How long the rest of a refused request is read and thrown away, so that its sender comes to read the answer."""


async def read_body(request: Request) -> bytes:
    """The whole body. Raises RequestRefused (413, 415, 408), and then the connection is of no more use."""
    encoding = request.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        await discard_body(request)
        raise RequestRefused(
            415,
            f"content-encoding is {encoding[:40]!r}; this server reads bodies as they are: send it without (identity).",
            "unsupported_encoding",
        )
    length = request.headers.get("content-length", "")
    known = int(length[:20]) if length.isascii() and length.isdigit() else 0
    body = bytearray()
    try:
        with _counted(request) as count:
            async with asyncio.timeout(BODY_S):
                if known <= MAX_BODY_BYTES:
                    async for chunk in request.stream():
                        count(len(chunk))
                        body += chunk
                        if len(body) > MAX_BODY_BYTES:
                            break
    except Overloaded:
        body.clear()
        await discard_body(request)
        raise
    except TimeoutError:
        raise RequestRefused(408, f"The body did not arrive within {BODY_S:g} s.", "timeout") from None
    except ClientDisconnect:
        raise RequestRefused(499, "The client left before its request had arrived.") from None
    if max(known, len(body)) <= MAX_BODY_BYTES:
        return bytes(body)
    body.clear()
    await discard_body(request)
    raise RequestRefused(
        413, f"The body has more than {MAX_BODY_BYTES} bytes, this server's limit.", "too_large"
    )


def _counted(request: Request) -> contextlib.AbstractContextManager[Callable[[int], None]]:
    """Of a body that comes by a connection; one from within is there already."""
    connection: Connection | None = request.scope.get(CONNECTION)
    return contextlib.nullcontext(lambda _: None) if connection is None else connection.connections.body()


async def discard_body(request: Request) -> None:
    """Read what still comes of a body that is refused, for a while, so that its sender comes to read the answer."""
    if request.headers.get("expect", "").lower() != "100-continue":
        with contextlib.suppress(TimeoutError, ClientDisconnect, RuntimeError):
            async with asyncio.timeout(LINGER_S):
                while (await request.receive()).get("more_body"):
                    pass


def _no_room(app: ASGIApp) -> ASGIApp:
    """`app` for a connection too many: only its health can be asked."""

    async def refusing(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in KEYLESS:
            await app(scope, receive, send)
            return
        connection: Connection = scope[CONNECTION]
        connection.connections.observer.on_refused("connections")
        await discard_body(Request(scope, receive))
        error = Overloaded("This server has as many connections as it may have; try again in a moment.")
        await error_response(error, scope, headers={"connection": "close"})(scope, receive, send)

    return refusing


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 with limits: on the head's bytes and its time, on what is asked ahead, on connections. What it
    refuses has our errors."""

    def __init__(self, *args: Any, connections: Connections, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._connections = connections
        self._connection: Connection | None = None
        self._head_bytes = 0
        self._in_head = True
        self._refused = False
        self._offered = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._answering: RequestResponseCycle | None = None
        """The request whose answer is being made; `cycle` is the newest, which may wait behind it (pipelining)."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._connection = connection = self._connections.opened(transport)
        if connection.surplus:
            self.app = _no_room(self.app)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        if self._refused or self._dropped:
            return
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_timer is None:
                self._start_timer()
        self._unset_keepalive_if_required()
        self._feed(data)
        # A head that ended in `data` may have brought its body along: only one that still goes on is too long.
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse_head()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_timer()
        # One read may bring much more than the limit, and the head's end with it.
        if len(self.url) + sum([len(name) + len(value) + 4 for name, value in self.headers]) > MAX_HEAD_BYTES:
            self._refuse_head()
            return
        self._offered = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        if self._offered or self._dropped:
            return
        assert self._connection is not None
        # One read may hold thousands of small requests, and each that waits costs a hundred times its bytes.
        if len(self.pipeline) >= MAX_PIPELINED:
            self._connection.drop("pipelined")
            return
        cast(Scope, self.scope)[CONNECTION] = self._connection
        self._connections.asked(self._connection)
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._unanswered() is None and self._connection is not None:
            self._connections.answered(self._connection)

    def on_body(self, body: bytes) -> None:
        if not (self._refused or self._dropped):
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._offered or self._refused or self._dropped:
            return
        super().on_message_complete()
        self._in_head, self._head_bytes = True, 0

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        # uvicorn tells only the newest one: another would go on to compute for nobody, and write to what is closed.
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()
        self.pipeline.clear()
        if self._connection is not None:
            self._connections.closed(self._connection)
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def shutdown(self) -> None:
        """The server ends: a request that has not come yet is refused, one that is being answered may go on."""
        if self._waits_for_body():
            self._refuse(Overloaded("The server is shutting down; ask another server.", retry_after_s=5))
        if self._refused:
            self.transport.close()
        else:
            super().shutdown()

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as end:
            # To speak another protocol is an offer (Java's client makes it with every first request); a server may
            # pass it over. The parser stops there and leaves the body to that protocol, so a new one reads the
            # request again without the offer.
            if self._offered:
                self._feed(self._without_offer() + data[end.args[0] :])
        except httptools.HttpParserError:
            self._refuse(RequestRefused(400, "The request is not valid HTTP."))

    def _without_offer(self) -> bytes:
        """The head that was read, and a fresh parser to read it."""
        headers = [(name, value) for name, value in self.headers if name != b"upgrade"]
        request = b"%b %b HTTP/%b" % (
            self.parser.get_method(),
            self.url,
            self.parser.get_http_version().encode(),
        )
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own
        return b"\r\n".join([request, *(b"%b: %b" % header for header in headers), b"", b""])

    @property
    def _dropped(self) -> bool:
        """It was cut off, and what still comes of it means nothing."""
        return self._connection is not None and self._connection.dropped is not None

    def _waits_for_body(self) -> bool:
        """The rest of the newest request has still to come, and nothing of an answer has gone out."""
        cycle = self._unanswered()
        return cycle is not None and cycle.more_body and not cycle.response_started and not self.pipeline

    def _unanswered(self) -> RequestResponseCycle | None:
        """The newest request, while its answer is not complete."""
        return None if getattr(self.cycle, "response_complete", True) else self.cycle

    def _refuse_head(self) -> None:
        message = f"The request's headers have more than {MAX_HEAD_BYTES} bytes, this server's limit."
        self._refuse(RequestRefused(431, message))

    def _refuse(self, error: OctavoError) -> None:
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        self._stop_timer()
        self._unset_keepalive_if_required()
        scope: Scope | None = None
        if self._waits_for_body():  # this is its answer; who reads the body meets the end of the connection
            scope = cast(Scope, self.cycle.scope)
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        elif self._unanswered() is not None:
            self._close_behind_answers()
            return
        status, own, body = answer_error(error, scope)
        if scope is None:
            own = {**own, "x-request-id": log_refusal(status, error)}
        else:  # its line comes when who reads its body has met the end
            note = note_of(scope)
            note.status, note.error = status, error_word(error)
            own = {**own, **request_id_headers(scope)}
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
            **own,
        }
        phrase = HTTPStatus(status).phrase if status in _STATUSES else "Overloaded"
        lines = [f"HTTP/1.1 {status} {phrase}", *map(": ".join, headers.items()), "", ""]
        self.transport.write("\r\n".join(lines).encode() + body)
        self.loop.call_later(LINGER_S, self.transport.close)

    def _close_behind_answers(self) -> None:
        """Requests that came whole are answered, and nothing cuts into that; then the connection closes."""
        last: RequestResponseCycle | None = self.cycle
        assert last is not None
        if last.more_body:  # this one did not come whole
            if not self.pipeline:  # and is being answered already
                self.transport.close()
                return
            self.pipeline.popleft()
            last = self.pipeline[0][0] if self.pipeline else self._answering
            assert last is not None
        last.keep_alive = False

    def _start_timer(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_S, self._late)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _late(self) -> None:
        self._refuse(RequestRefused(408, f"The request's headers did not arrive within {HEAD_S:g} s."))
