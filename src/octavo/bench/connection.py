"""HTTP/1.1 as a measuring client needs it: each read is stamped at once. Knows bytes and connections, no JSON.

`asyncio.Protocol` under httptools' parser, so that nothing lies between the socket and the stamp: the first thing
that is done with what was read is to look at the clock. That clock is `clock_ns`, by default time.perf_counter_ns
(CLOCK_MONOTONIC on Linux); a loop's own time() is not used, uvloop's stands still within a turn of the loop and has
whole milliseconds. A request leaves in one write; its stamp is the time of that call, just before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Any, Protocol, cast

import httptools

__all__ = ["ClockNs", "Connection", "Failure", "Listener", "system_reason"]

ClockNs = Callable[[], int]
MAX_ANSWER_BYTES = 256 << 20
"""A longer answer is an error: 100,000 tokens in events of 300 bytes are an eighth of it."""


class Failure(Exception):
    """Why there is no whole answer. `kind` is of `Exchange.error`."""

    def __init__(self, kind: str, message: str, *, unread: bool = False) -> None:
        super().__init__(message)
        self.kind = kind
        self.unread = unread
        """The connection had served before and ended without one byte of this answer: it may be asked again."""


class Listener(Protocol):
    """Who is told of an answer. Every call has the stamp of the read that brought it, in nanoseconds."""

    def headers(self, status: int, headers: dict[str, str], at_ns: int) -> None:
        """The answer's headers are whole; names are in lower case."""

    def body(self, data: bytes, at_ns: int) -> None:
        """A part of the answer's body."""

    def end(self, failure: Failure | None, at_ns: int) -> None:
        """The answer is whole, or failed. Nothing follows."""


class Connection(asyncio.Protocol):
    """One connection: a request at a time."""

    def __init__(self, clock_ns: ClockNs, lost: Callable[[Connection], None]) -> None:
        self._clock_ns = clock_ns
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._listener: Listener | None = None
        self._parser: Any = None
        self._answers = 0
        """Whole ones, on this connection."""
        self._read = 0
        """Bytes of the present answer's body."""
        self._at_ns = 0
        self._unread = True
        self._until_eof = False
        self._complete = False
        self._stays = False
        """The server keeps the connection open after this answer."""
        self._extra = False
        """More came than the answer."""
        self._fields: dict[str, str] = {}

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Nagle's algorithm would hold back the end of a long request."""
        self._transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        """Stamps, then parses."""
        self._at_ns = self._clock_ns()
        if self._listener is None:  # an answer to nothing
            self.abort()
            return
        self._unread = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self._fail(_failure_of(error.__context__ or error))
            return
        except httptools.HttpParserError as error:
            if (
                not self._complete
            ):  # what follows a whole answer does not matter, but this connection is spent
                self._fail(Failure("stream", f"the answer is no HTTP/1.1 ({error})"))
                return
            self._extra = True
        if self._complete:
            self._finish()

    def eof_received(self) -> None:
        """For an answer that is as long as its connection, the end."""
        if self._listener is not None and self._until_eof:
            self._at_ns = self._clock_ns()
            self._finish()

    def connection_lost(self, error: Exception | None) -> None:
        """Also after our own `abort`, when nobody listens any more."""
        if self._listener is not None:
            self._at_ns = self._clock_ns()
            if self._until_eof and error is None:
                self._finish()
            else:
                said = system_reason(error) if error else "the server closed the connection"
                where = "before the answer" if self._unread else "in the middle of the answer"
                again = self._unread and self._answers > 0
                self._fail(Failure("cut", f"{said} {where}", unread=again))
        self._transport = self._parser = None
        self._lost(self)

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        """Of the answer, or a trailer."""
        if self._complete:
            self._extra = True
        else:
            self._fields[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Interim answers (1xx) are passed over."""
        status = self._parser.get_status_code()
        if self._complete or status < 200:
            return
        fields = self._fields
        framed = "content-length" in fields or "chunked" in fields.get("transfer-encoding", "").lower()
        self._until_eof = not framed and status not in (204, 304)
        if self._listener is not None:
            self._listener.headers(status, fields, self._at_ns)

    def on_body(self, data: bytes) -> None:
        """A piece of it, without the framing."""
        if self._complete:
            return
        self._read += len(data)
        if self._read > MAX_ANSWER_BYTES:
            raise _TooLong
        if self._listener is not None:
            self._listener.body(data, self._at_ns)

    def on_message_complete(self) -> None:
        """The whole answer is there, unless it was an interim one."""
        if self._parser.get_status_code() < 200:
            self._fields = {}
        else:
            self._complete = True
            self._stays = bool(self._parser.should_keep_alive())  # only here it knows

    # What the client calls.

    @property
    def usable(self) -> bool:
        """Open, and nobody waits on it."""
        return self._transport is not None and self._listener is None and not self._transport.is_closing()

    def ask(self, data: bytes, listener: Listener) -> None:
        """Writes a whole request. The answer's news go to `listener`."""
        assert self.usable and self._transport is not None
        self._listener = listener
        self._fields, self._read = {}, 0
        self._unread, self._until_eof, self._complete, self._extra = True, False, False, False
        self._stays = False
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(data)

    def abort(self) -> None:
        """Ends it without a word to the listener."""
        self._listener = None
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Nothing more is read for now: what came is not taken as fast. Calling it twice is harmless."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Go on reading."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _finish(self) -> None:
        listener, self._listener = self._listener, None
        stays = self._stays and not self._extra
        self._answers += 1
        if not stays and self._transport is not None:
            self._transport.close()
        if listener is not None:
            listener.end(None, self._at_ns)

    def _fail(self, failure: Failure) -> None:
        listener, self._listener = self._listener, None
        if self._transport is not None:
            self._transport.abort()
        if listener is not None:
            listener.end(failure, self._at_ns)


class _TooLong(Exception):
    pass


def _failure_of(error: BaseException) -> Failure:
    """Of what was raised while an answer was taken in."""
    if isinstance(error, _TooLong):
        return Failure("stream", f"the answer is longer than {MAX_ANSWER_BYTES >> 20} MiB")
    return Failure("client", f"the client failed: {type(error).__name__}: {error}")


def system_reason(error: BaseException) -> str:
    """What the system says of it, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return "what is there speaks no TLS, so its URL begins with http://"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error}"
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        import os

        return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__
