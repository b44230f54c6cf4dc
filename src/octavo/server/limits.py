"""What a connection may cost: size and time of a head and of a body. Knows HTTP's bytes, not what they ask.

uvicorn bounds neither a request's head nor the time it takes to come, so both are bounded here.
"""

from __future__ import annotations

import asyncio
import contextlib
from http import HTTPStatus
from typing import Any

from starlette.requests import ClientDisconnect, Request
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from octavo.protocol.errors import RequestRefused, error_body

__all__ = ["BoundedProtocol", "read_body"]

MAX_HEAD_BYTES = 64 << 10
"""Request line and headers."""
MAX_BODY_BYTES = 32 << 20
HEAD_S = 20.0
"""From the connection, or from a later request's first byte, to the end of the head."""
BODY_S = 60.0
"""From the end of the head to the end of the body."""
LINGER_S = 2.0
"""How long the rest of a refused request is read and thrown away, so that its sender comes to read the answer."""


async def read_body(request: Request) -> bytes:
    """The whole body. Raises RequestRefused (413, 408), and then the connection is of no more use."""
    length = request.headers.get("content-length", "")
    known = int(length[:20]) if length.isascii() and length.isdigit() else 0
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            if known <= MAX_BODY_BYTES:
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > MAX_BODY_BYTES:
                        break
    except TimeoutError:
        raise RequestRefused(408, f"The body did not arrive within {BODY_S:g} s.", "timeout") from None
    except ClientDisconnect:
        raise RequestRefused(499, "The client left before its request had arrived.") from None
    if max(known, len(body)) <= MAX_BODY_BYTES:
        return bytes(body)
    body.clear()
    if request.headers.get("expect", "").lower() != "100-continue":
        with contextlib.suppress(TimeoutError, ClientDisconnect, RuntimeError):
            async with asyncio.timeout(LINGER_S):
                while (await request.receive()).get("more_body"):
                    pass
    raise RequestRefused(
        413, f"The body has more than {MAX_BODY_BYTES} bytes, this server's limit.", "too_large"
    )


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 with a limit on the head's bytes and on its time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._in_head = True
        self._refused = False
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_timer is None:
                self._start_timer()
        super().data_received(data)
        # A head that ended in `data` may have brought its body along: only one that still goes on is too long.
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(
                431, f"The request's headers have more than {MAX_HEAD_BYTES} bytes, this server's limit."
            )

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head, self._head_bytes = True, 0

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _refuse(self, status: int, message: str) -> None:
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        self._stop_timer()
        self._unset_keepalive_if_required()
        if getattr(self.cycle, "response_complete", True) is False:
            self.transport.close()  # an answer is on its way; nothing may cut into it
            return
        body = error_body(RequestRefused(status, message))
        self.transport.write(
            b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (status, HTTPStatus(status).phrase.encode(), len(body), body)
        )
        self.loop.call_later(LINGER_S, self.transport.close)

    def _start_timer(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_S, self._late)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _late(self) -> None:
        self._refuse(408, f"The request's headers did not arrive within {HEAD_S:g} s.")
