"""A request to a tier and its answer as it comes. Knows HTTP and one tier's connections, and mends nothing.

It is built on the bench's connections: they wake whoever waits as soon as bytes are there, and stop reading while what
came is not taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from octavo.bench.connection import Connection, Failure
from octavo.bench.pool import Answer, Pool, fetch
from octavo.routing.tiers import Tier

__all__ = ["Incoming", "Upstream"]

_HELD_BYTES = 256 << 10
"""Of an answer that its reader has not taken, before no more is read."""
CHECK_S = 3.0
"""How long a tier may take to say that it is there."""


class Incoming:
    """An answer on its way; a Listener of its connection."""

    def __init__(self) -> None:
        self.status = 0
        self.fields: Mapping[str, str] = {}
        """Its headers, names in lower case."""
        self._parts: list[bytes] = []
        self.held_bytes = 0
        """Of the body, what came and was not read."""
        self._ended = False
        self._failure: Failure | None = None
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._connection: Connection | None = None

    # What the connection calls.

    def headers(self, status: int, headers: dict[str, str], at_ns: int) -> None:
        self.status, self.fields = status, headers
        self._wake()

    def body(self, data: bytes, at_ns: int) -> None:
        self._parts.append(data)
        self.held_bytes += len(data)
        if self.held_bytes > _HELD_BYTES and not self._paused and self._connection is not None:
            self._paused = True
            self._connection.pause()
        self._wake()

    def end(self, failure: Failure | None, at_ns: int) -> None:
        self._ended, self._failure = True, failure
        self._wake()

    # What its reader calls.

    def begin(self, connection: Connection, request: bytes) -> None:
        """Ask."""
        self._connection = connection
        connection.ask(request, self)

    async def head(self) -> None:
        """Wait for status and headers. Raises Failure."""
        while not self.status:
            if self._failure is not None:
                raise self._failure
            await self._news()

    async def read(self) -> bytes:
        """What has come since; b"" at the end. Raises Failure, after all that came before it has been read."""
        while not self._parts:
            if self._failure is not None:
                raise self._failure
            if self._ended:
                return b""
            await self._news()
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self.held_bytes = 0
        if self._paused and self._connection is not None:
            self._paused = False
            self._connection.resume()
        return data

    @property
    def whole(self) -> bool:
        """Its end has come."""
        return self._ended and self._failure is None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _news(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


class Upstream:
    """The connections to one tier."""

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self._pool = Pool(tier.base)

    async def ask(self, path: str, body: bytes, more: Mapping[str, str]) -> tuple[Incoming, Connection]:
        """Send a request, and wait for its answer's headers. `path` is behind /v1; `more`: headers. Raises Failure.

        The connection is the caller's, who gives it back after a whole answer, or ends it.
        """
        request = self._head("POST", path, {**more, "content-length": str(len(body))}) + body
        while True:
            connection, fresh = await self._pool.connect()
            incoming = Incoming()
            try:
                incoming.begin(connection, request)
                await incoming.head()
            except Failure as failure:
                if (
                    failure.unread and not fresh
                ):  # it had been idle, and its end was on the way: nothing was asked
                    continue
                raise
            except BaseException:
                connection.abort()
                raise
            return incoming, connection

    def give_back(self, connection: Connection) -> None:
        """After a whole answer."""
        self._pool.give_back(connection)

    async def check(self) -> Answer:
        """What it says of its models. Raises Failure."""
        return await fetch(self._pool, self._head("GET", "/models", {}), CHECK_S)

    async def close(self) -> None:
        """End all connections."""
        await self._pool.close()

    def _head(self, method: str, path: str, more: Mapping[str, str]) -> bytes:
        base, key = self.tier.base, self.tier.key
        fields = {"host": base.authority, **({"authorization": f"Bearer {key}"} if key else {}), **more}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return f"{method} {base.path}{path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1")
