"""Connections that are kept, limited, lost and made anew; names, TLS; on real sockets in virtual time."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable

import pytest
import trustme

from octavo.bench.address import Address
from octavo.bench.connection import Connection, Failure
from octavo.bench.pool import Pool, fetch
from tests.bench.pools import GET, served
from tests.bench.scripted import (
    Asked,
    Cut,
    Hang,
    Reply,
    ScriptedServer,
    Step,
    clock_ns,
    in_virtual_time,
    scripted,
)


def test_a_connection_is_used_again_and_the_last_one_first() -> None:
    async def use(pool: Pool, server: ScriptedServer) -> tuple[list[int], int]:
        first, second = await asyncio.gather(fetch(pool, GET, 9), fetch(pool, GET, 9))
        assert first.body == second.body == b"ok"
        for _ in range(3):
            await fetch(pool, GET, 9)
        return [asked.connection for asked in server.asked], pool.opened

    connections, opened = served(lambda _: Reply([Step(0.1, b"ok")], framing="length"), use)
    assert opened == 2
    assert sorted(connections[:2]) == [1, 2]
    assert len(set(connections[2:])) == 1


@pytest.mark.parametrize("keep", [True, False])
def test_connection_close_is_heard(keep: bool) -> None:
    async def use(pool: Pool, server: ScriptedServer) -> int:
        await fetch(pool, GET, 9)
        await fetch(pool, GET, 9)
        return pool.opened

    assert served(lambda _: Reply([Step(0.1, b"ok")], framing="length", keep_alive=keep), use) == 2 - keep


def test_a_connection_that_was_closed_meanwhile_is_not_taken() -> None:
    async def use(pool: Pool, server: ScriptedServer) -> int:
        await fetch(pool, GET, 9)
        for writer in server.writers:
            writer.close()
        await asyncio.sleep(0.1)
        await fetch(pool, GET, 9)
        return pool.opened

    assert served(lambda _: Reply([Step(0.1, b"ok")], framing="length"), use) == 2


def test_a_server_that_closes_just_when_it_is_asked_is_asked_again_on_a_new_connection() -> None:
    def script(asked: Asked) -> Reply:
        closes = asked.index == 1
        return Reply([Step(0.0, Cut())] if closes else [Step(0.1, b"ok")], framing="length", raw=closes)

    async def use(pool: Pool, server: ScriptedServer) -> list[int]:
        await fetch(pool, GET, 9)
        assert (await fetch(pool, GET, 9)).body == b"ok"
        return [asked.connection for asked in server.asked]

    assert served(script, use) == [1, 1, 2]


def test_a_limit_of_connections_makes_requests_wait_in_turn() -> None:
    async def use(pool: Pool, server: ScriptedServer) -> tuple[list[float], int]:
        begin = asyncio.get_running_loop().time()
        await asyncio.gather(*(fetch(pool, GET, 9) for _ in range(5)))
        return [round(asked.at_s - begin, 6) for asked in server.asked], server.connections

    times, connections = served(lambda _: Reply([Step(0.5, b"ok")], framing="length"), use, max_connections=2)
    assert times == [0.0, 0.0, 0.5, 0.5, 1.0]
    assert connections == 2


def test_a_limit_holds_with_connections_that_close_and_with_waiters_that_leave() -> None:
    async def use(pool: Pool, server: ScriptedServer) -> int:
        first = asyncio.create_task(fetch(pool, GET, 9))
        await asyncio.sleep(0.1)
        with pytest.raises(Failure, match=r"no answer within 0\.1 s"):
            await fetch(pool, GET, 0.1)
        others = [asyncio.create_task(fetch(pool, GET, 9)) for _ in range(3)]
        await asyncio.gather(first, *others)
        return server.connections

    assert served(lambda _: Reply([Step(0.5, b"ok")], framing="close"), use, max_connections=1) == 4


def test_a_silent_server_is_given_up_and_sees_it() -> None:
    async def use(pool: Pool, server: ScriptedServer) -> tuple[int, bool]:
        begin = clock_ns()
        with pytest.raises(Failure, match=r"no answer within 3 s") as found:
            await fetch(pool, GET, 3)
        assert found.value.kind == "timeout"
        took = clock_ns() - begin
        await asyncio.sleep(0.1)
        return took, server.asked[0].left

    assert served(lambda _: Reply([Step(0.1, Hang())]), use) == (3_000_000_000, True)


def test_nobody_listens_there() -> None:
    async def main() -> Failure:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            pool = Pool(Address.parse(f"127.0.0.1:{free.getsockname()[1]}"), clock_ns=clock_ns)
            with pytest.raises(Failure) as found:
                await pool.connect()
            return found.value

    failure = in_virtual_time(main)
    assert (failure.kind, str(failure)) == ("connect", "connection refused")


def test_a_host_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> str:
        async def getaddrinfo(*_: object, **__: object) -> object:
            raise socket.gaierror(-2, "Name or service not known")

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
        with pytest.raises(Failure) as found:
            await Pool(Address.parse("http://nowhere.invalid"), clock_ns=clock_ns).connect()
        return str(found.value)

    assert in_virtual_time(main) == "the host nowhere.invalid is not known"


def test_the_address_that_answers_is_kept_when_a_name_has_several(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(pool: Pool, server: ScriptedServer) -> tuple[int, int]:
        port = pool.address.port
        lookups = 0

        async def getaddrinfo(*_: object, **__: object) -> object:
            nonlocal lookups
            lookups += 1
            v6 = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", port, 0, 0))
            return [v6, (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", _numeric_or(getaddrinfo))
        await asyncio.gather(fetch(pool, GET, 9), fetch(pool, GET, 9))
        await fetch(pool, GET, 9)
        return lookups, pool.opened

    async def main() -> tuple[int, int]:
        async with scripted(lambda _: Reply([Step(0.1, b"ok")], framing="close")) as server:
            port = server.url.rpartition(":")[2]
            pool = Pool(Address.parse(f"http://two-addresses.invalid:{port}"), clock_ns=clock_ns)
            try:
                return await use(pool, server)
            finally:
                await pool.close()

    lookups, opened = in_virtual_time(main)
    assert opened == 3
    assert lookups <= 2  # those two that began at once


def _numeric_or(other: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
    async def getaddrinfo(host: str, port: int, **more: int) -> object:
        if host in ("127.0.0.1", "::1"):
            return socket.getaddrinfo(host, port, **more)
        return await other()

    return getaddrinfo


@pytest.mark.parametrize("insecure", [False, True])
def test_tls_and_its_certificates(insecure: bool) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)

    async def main() -> tuple[str, float]:
        async with scripted(lambda _: Reply([Step(0.5, b"ok")]), tls=context) as server:
            pool = Pool(Address.parse(server.url), clock_ns=clock_ns, insecure=insecure)
            try:
                begin = clock_ns()
                answer = await fetch(pool, GET, 9)
                return answer.body.decode(), (clock_ns() - begin) / 1e6
            except Failure as failure:
                return failure.kind, 0.0
            finally:
                await pool.close()
                await asyncio.sleep(1.0)

    assert in_virtual_time(main) == (("ok", 500.0) if insecure else ("connect", 0.0))


def test_an_idle_connection_that_hears_something_is_dropped() -> None:
    async def use(pool: Pool, server: ScriptedServer) -> tuple[Connection | None, int]:
        await fetch(pool, GET, 9)
        server.writers[0].write(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
        await asyncio.sleep(0.1)
        return pool.idle(), pool.opened

    assert served(lambda _: Reply([Step(0.1, b"ok")], framing="length"), use) == (None, 1)
