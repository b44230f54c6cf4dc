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
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

import httptools

from octavo.errors import BenchError

__all__ = [
    "Address",
    "Answer",
    "ClockNs",
    "Connection",
    "Failure",
    "Listener",
    "Pool",
    "fetch",
    "system_reason",
]

ClockNs = Callable[[], int]
MAX_ANSWER_BYTES = 256 << 20
"""A longer answer is an error: 100,000 tokens in events of 300 bytes are an eighth of it."""
MAX_FETCH_BYTES = 16 << 20


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


@dataclass(frozen=True)
class Address:
    """Where a server is."""

    scheme: str
    host: str
    port: int
    path: str
    """What is before /v1, without a slash at its end."""

    @classmethod
    def parse(cls, url: str) -> Address:
        """Of a URL with or without /v1 at its end. Raises BenchError."""
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
        except ValueError as error:
            raise BenchError(f"{url!r} is no URL ({error}); one looks like http://127.0.0.1:8000.") from None
        if parts.scheme not in ("http", "https"):
            raise BenchError(
                f"{url!r} begins with {parts.scheme}://; only http:// and https:// are measured."
            )
        if not parts.hostname or parts.query or parts.fragment:
            raise BenchError(f"{url!r} is no server's URL; one looks like http://127.0.0.1:8000.")
        if parts.username or parts.password:
            raise BenchError("The URL has a user or a password in it; give a key in an environment variable.")
        path = parts.path.rstrip("/")
        for end in ("/chat/completions", "/completions", "/models", "/v1"):
            path = path.removesuffix(end)
        return cls(parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80), path)

    @property
    def authority(self) -> str:
        """Host and port as the Host header has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = self.port == (443 if self.scheme == "https" else 80)
        return host if usual else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """Without /v1."""
        return f"{self.scheme}://{self.authority}{self.path}"


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


class Pool:
    """Connections to one server, kept open between requests."""

    def __init__(
        self,
        address: Address,
        *,
        clock_ns: ClockNs = time.perf_counter_ns,
        max_connections: int | None = None,
        insecure: bool = False,
    ) -> None:
        """`max_connections`: a request beyond them waits, and is then late. `insecure`: any certificate will do."""
        self.address = address
        self.opened = 0
        """Connections that were made."""
        self._clock_ns = clock_ns
        self._max = max_connections
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._connecting = 0
        self._queue: deque[asyncio.Future[None]] = deque()
        self._tls = _tls(insecure) if address.scheme == "https" else None
        self._where: tuple[socket.AddressFamily, Any] | None = None

    def idle(self) -> Connection | None:
        """An open connection that nobody uses; the one used last, which the server will close last."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def connect(self, *, new: bool = False) -> tuple[Connection, bool]:
        """An idle connection or a new one (True). `new`: only a new one will do, if the limit of connections does not
        forbid it. Raises Failure of the kind connect."""
        while self._max is not None and len(self._all) + self._connecting >= self._max:
            if (found := self.idle()) is not None:
                return found, False
            waiter = asyncio.get_running_loop().create_future()
            self._queue.append(waiter)
            await waiter
        if not new and (found := self.idle()) is not None:
            return found, False
        self._connecting += 1
        try:
            connection = await self._open()
        except BaseException:
            self._wake()
            raise
        finally:
            self._connecting -= 1
        self.opened += 1
        self._all.add(connection)
        return connection, True

    def give_back(self, connection: Connection) -> None:
        """After a whole answer."""
        if connection.usable:
            self._idle.append(connection)
            self._wake()

    async def close(self) -> None:
        """Ends all connections."""
        for connection in list(self._all):
            connection.abort()
        self._idle.clear()
        for _ in range(100):  # the loop calls connection_lost in its next turns
            if not self._all:
                break
            await asyncio.sleep(0)

    async def _open(self) -> Connection:
        loop = asyncio.get_running_loop()
        more: dict[str, Any] = {}
        if self._tls is not None:
            more = {"ssl": self._tls, "server_hostname": self.address.host}
        problem: OSError | None = None
        for family, where in [self._where] if self._where else await self._resolve():
            try:
                _, connection = await loop.create_connection(
                    lambda: Connection(self._clock_ns, self._forget),
                    where[0],
                    where[1],
                    family=family,
                    **more,
                )
            except OSError as error:
                problem = error
                continue
            self._where = (family, where)
            return connection
        assert problem is not None
        raise Failure("connect", system_reason(problem)) from problem

    async def _resolve(self) -> list[tuple[socket.AddressFamily, Any]]:
        """Once: a lookup for each connection would be measured too."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(self.address.host, self.address.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise Failure("connect", f"the host {self.address.host} is not known") from error
        return [(family, where) for family, _, _, _, where in found]

    def _forget(self, connection: Connection) -> None:
        self._all.discard(connection)
        self._wake()

    def _wake(self) -> None:
        while self._queue:
            waiter = self._queue.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return


def allow_many_files() -> None:
    """As many open connections as the system lets this process have: its usual limit is 1,024."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def system_reason(error: BaseException) -> str:
    """What the system says of it, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error}"
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        import os

        return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__


def _tls(insecure: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context


@dataclass
class Answer:
    """A whole answer, of a request that is not measured."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class _Whole:
    """Collects one."""

    def __init__(self, done: asyncio.Future[Answer]) -> None:
        self._done = done
        self._answer = Answer()
        self._parts: list[bytes] = []
        self._size = 0

    def headers(self, status: int, headers: dict[str, str], at_ns: int) -> None:
        self._answer.status, self._answer.headers = status, headers

    def body(self, data: bytes, at_ns: int) -> None:
        self._size += len(data)
        if self._size <= MAX_FETCH_BYTES:
            self._parts.append(data)

    def end(self, failure: Failure | None, at_ns: int) -> None:
        if self._done.done():
            return
        if failure is not None:
            self._done.set_exception(failure)
            return
        self._answer.body = b"".join(self._parts)
        self._done.set_result(self._answer)


async def fetch(pool: Pool, request: bytes, timeout_s: float) -> Answer:
    """A request's whole answer; asked once more where an old connection had ended. Raises Failure."""
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                connection, fresh = await pool.connect()
                done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
                connection.ask(request, _Whole(done))
                try:
                    answer = await done
                except Failure as failure:
                    if failure.unread and not fresh:
                        continue
                    raise
                except asyncio.CancelledError:
                    connection.abort()
                    raise
                pool.give_back(connection)
                return answer
    except TimeoutError:
        raise Failure("timeout", f"no answer within {timeout_s:g} s") from None
