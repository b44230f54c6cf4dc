"""Connections to one server, kept open between requests, and whole answers of requests that are not measured.

Knows names, TLS and limits; nothing of what is asked. A name is looked up once: a lookup for each connection would be
measured too.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from octavo.bench.address import Address
from octavo.bench.connection import ClockNs, Connection, Failure, system_reason

__all__ = ["Answer", "Pool", "allow_many_files", "fetch"]

MAX_FETCH_BYTES = 16 << 20


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
        self._where = None  # the name may mean another address by now
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

    @property
    def begun(self) -> bool:
        return self._size > 0

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
    begun = False
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                connection, fresh = await pool.connect()
                done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
                whole = _Whole(done)
                connection.ask(request, whole)
                try:
                    answer = await done
                except Failure as failure:
                    if failure.unread and not fresh:
                        continue
                    raise
                except asyncio.CancelledError:
                    begun = whole.begun
                    connection.abort()
                    raise
                pool.give_back(connection)
                return answer
    except TimeoutError:
        what = "an answer without an end" if begun else "no answer"
        raise Failure("timeout", f"{what} within {timeout_s:g} s") from None
