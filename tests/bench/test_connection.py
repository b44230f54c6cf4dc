"""HTTP/1.1 on real sockets in virtual time: framings, connections kept and lost, faults, TLS; each with its stamp."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
import trustme

from octavo.bench import connection as module
from octavo.bench.connection import Address, Answer, Connection, Failure, Pool, fetch
from octavo.errors import BenchError
from tests.bench.scripted import (
    Asked,
    Cut,
    Hang,
    Reply,
    Script,
    ScriptedServer,
    Step,
    clock_ns,
    in_virtual_time,
    scripted,
)

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


class Told:
    """A listener that notes all with its time, in milliseconds from the request."""

    def __init__(self) -> None:
        self.begin = clock_ns()
        self.news: list[tuple[float, str]] = []
        self.failure: Failure | None = None
        self.done = asyncio.Event()

    def headers(self, status: int, headers: dict[str, str], at_ns: int) -> None:
        self._note(at_ns, f"{status} {headers.get('content-type')}")

    def body(self, data: bytes, at_ns: int) -> None:
        self._note(at_ns, data.decode())

    def end(self, failure: Failure | None, at_ns: int) -> None:
        assert not self.done.is_set()
        self.failure = failure
        self._note(at_ns, failure.kind if failure else "end")
        self.done.set()

    def _note(self, at_ns: int, news: str) -> None:
        self.news.append(((at_ns - self.begin) / 1e6, news))


async def tell(pool: Pool, request: bytes = GET) -> Told:
    connection, _ = await pool.connect()
    told = Told()
    connection.ask(request, told)
    await told.done.wait()
    pool.give_back(connection)
    return told


@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
def test_the_framings_of_a_body_and_their_stamps(framing: str) -> None:
    reply = Reply(
        [Step(0.25, b"ab"), Step(0.5, b"c")], framing=framing, content_type="text/plain", headers_after_s=0.1
    )
    told = served(lambda _: reply, lambda pool, _: tell(pool))
    assert told.news == [(100.0, "200 text/plain"), (350.0, "ab"), (850.0, "c"), (850.0, "end")]


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


def test_a_new_connection_that_ends_without_a_byte_is_a_failure() -> None:
    told = served(lambda _: Reply([Step(0.1, Cut())], raw=True), lambda pool, _: tell(pool))
    assert told.news == [(100.0, "cut")]
    assert told.failure is not None and not told.failure.unread
    assert str(told.failure) == "the server closed the connection before the answer"


@pytest.mark.parametrize(
    ("cut", "framing", "message"),
    [
        (Cut(), "chunked", "the server closed the connection in the middle of the answer"),
        (Cut(), "length", "the server closed the connection in the middle of the answer"),
        (Cut(reset=True), "chunked", "connection reset by peer in the middle of the answer"),
        (Cut(reset=True), "close", "connection reset by peer in the middle of the answer"),
    ],
)
def test_an_answer_that_is_cut(cut: Cut, framing: str, message: str) -> None:
    steps = [Step(0.1, b"ab"), Step(0.1, cut)]
    headers = (("content-length", "9"),) if framing == "length" else ()
    told = served(
        lambda _: Reply(steps, framing="none" if framing == "length" else framing, headers=headers),
        lambda pool, _: tell(pool),
    )
    assert told.news[1:] == [(100.0, "ab"), (200.0, "cut")]
    assert str(told.failure) == message


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_http_is_told(data: bytes) -> None:
    told = served(lambda _: Reply([Step(0.1, data)], raw=True), lambda pool, _: tell(pool))
    assert told.news[-1] == (100.0, "stream")
    assert str(told.failure).startswith("the answer is no HTTP/1.1 (")


def test_interim_answers_and_headers_in_pieces_are_taken() -> None:
    steps = [
        Step(0.1, b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"),
        Step(0.1, b"HTTP/1.1 200 OK\r\nConTent-"),
        Step(0.1, b"Type: a/b\r\ncontent-length: 2\r\n\r"),
        Step(0.1, b"\nok"),
    ]
    told = served(lambda _: Reply(steps, raw=True), lambda pool, _: tell(pool))
    assert told.news == [(400.0, "200 a/b"), (400.0, "ok"), (400.0, "end")]


def test_what_follows_an_answer_ends_the_connection_and_not_the_answer() -> None:
    data = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nbad"

    async def use(pool: Pool, server: ScriptedServer) -> tuple[Answer, int]:
        answer = await fetch(pool, GET, 9)
        await fetch(pool, GET, 9)
        return answer, pool.opened

    answer, opened = served(lambda _: Reply([Step(0.1, data), Step(9.0, Hang())], raw=True), use)
    assert (answer.status, answer.body, opened) == (200, b"ok", 2)


def test_an_answer_without_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ANSWER_BYTES", 1 << 20)
    steps = [Step(0.1, bytes(100_000)) for _ in range(20)]
    told = served(lambda _: Reply(steps), lambda pool, _: tell(pool))
    assert told.news[-1] == (1100.0, "stream")
    assert str(told.failure) == "the answer is longer than 1 MiB"


def test_a_fault_in_a_listener_is_the_client_s() -> None:
    class Broken(Told):
        def body(self, data: bytes, at_ns: int) -> None:
            raise ZeroDivisionError("by nothing")

    async def use(pool: Pool, server: ScriptedServer) -> Told:
        connection, _ = await pool.connect()
        told = Broken()
        connection.ask(GET, told)
        await told.done.wait()
        return told

    told = served(lambda _: Reply([Step(0.1, b"ok")]), use)
    assert told.failure is not None and told.failure.kind == "client"
    assert str(told.failure) == "the client failed: ZeroDivisionError: by nothing"


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
                told = await tell(pool)
                return told.news[1][1], told.news[1][0]
            except Failure as failure:
                return failure.kind, 0.0
            finally:
                await pool.close()
                await asyncio.sleep(1.0)

    assert in_virtual_time(main) == (("ok", 500.0) if insecure else ("connect", 0.0))


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("http://a", "http://a"),
        ("http://a/", "http://a"),
        ("a:8000", "http://a:8000"),
        ("http://a:8000/v1", "http://a:8000"),
        ("http://a:8000/v1/", "http://a:8000"),
        ("http://a:8000/v1/chat/completions", "http://a:8000"),
        ("https://a:443/proxy/x/v1", "https://a/proxy/x"),
        ("http://[::1]:80/v1", "http://[::1]"),
    ],
)
def test_addresses_with_and_without_v1(url: str, found: str) -> None:
    assert Address.parse(url).url == found


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://a", "begins with ftp://; only http"),
        ("http://", "is no server's URL"),
        ("http://a:99999", "is no URL"),
        ("http://a?x=1", "is no server's URL"),
        ("http://user:secret@a", "has a user or a password in it"),
    ],
)
def test_bad_addresses(url: str, message: str) -> None:
    with pytest.raises(BenchError, match=message) as found:
        Address.parse(url)
    assert "secret" not in str(found.value)


def test_an_idle_connection_that_hears_something_is_dropped() -> None:
    async def use(pool: Pool, server: ScriptedServer) -> tuple[Connection | None, int]:
        await fetch(pool, GET, 9)
        server.writers[0].write(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
        await asyncio.sleep(0.1)
        return pool.idle(), pool.opened

    assert served(lambda _: Reply([Step(0.1, b"ok")], framing="length"), use) == (None, 1)
