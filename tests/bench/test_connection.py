"""HTTP/1.1 on real sockets in virtual time: framings and faults, each with its stamp."""

from __future__ import annotations

import asyncio
import ssl

import pytest

from octavo.bench import connection as module
from octavo.bench.connection import Failure, system_reason
from octavo.bench.pool import Answer, Pool, fetch
from tests.bench.pools import GET, served
from tests.bench.scripted import (
    Cut,
    Hang,
    Reply,
    ScriptedServer,
    Step,
    clock_ns,
)


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


def test_https_to_a_server_without_tls_names_the_other_scheme() -> None:
    incoming = ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(incoming, ssl.MemoryBIO(), server_hostname="localhost")
    incoming.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(ssl.SSLError) as found:
        tls.do_handshake()
    assert system_reason(found.value) == "what is there speaks no TLS, so its URL begins with http://"
