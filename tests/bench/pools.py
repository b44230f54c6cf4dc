"""A pool of connections to a scripted server, for tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from octavo.bench.address import Address
from octavo.bench.pool import Pool
from tests.bench.scripted import Script, ScriptedServer, clock_ns, in_virtual_time, scripted

__all__ = ["GET", "served"]

T = TypeVar("T")
GET = b"GET /x HTTP/1.1\r\nhost: a\r\n\r\n"


def served(
    script: Script, use: Callable[[Pool, ScriptedServer], Awaitable[T]], *, max_connections: int | None = None
) -> T:
    """What `use` finds with a pool to a server."""

    async def main() -> T:
        async with scripted(script) as server:
            pool = Pool(Address.parse(server.url), clock_ns=clock_ns, max_connections=max_connections)
            try:
                return await use(pool, server)
            finally:
                await pool.close()

    return in_virtual_time(main)
