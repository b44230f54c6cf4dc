"""Time limits of a connection, on uvicorn's own loop with a small application."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from functools import partial
from typing import cast

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo.errors import OctavoError
from octavo.server import limits
from octavo.server.connections import FREE_BODY_BYTES, Connections
from octavo.server.errors import error_response
from octavo.server.limits import BoundedProtocol, read_body
from octavo.telemetry.metrics import Metrics

BODIES_BYTES = 256 << 10


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the length of the body."""
    try:
        body = await read_body(Request(scope, receive))
        response = Response(str(len(body)))
    except OctavoError as error:
        response = error_response(error)
    await response(scope, receive, send)


@pytest.fixture
async def port() -> AsyncIterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connections = Connections(Metrics("m"), max_bodies_bytes=BODIES_BYTES)
        config = uvicorn.Config(
            application,
            http=cast(type[asyncio.Protocol], partial(BoundedProtocol, connections=connections)),
            ws="none",
            lifespan="off",
            loop="none",
            log_config=None,
        )
        server = uvicorn.Server(config)
        task = asyncio.create_task(server._serve([listener]))
        yield listener.getsockname()[1]
        server.should_exit = True
        await task


async def exchange(port: int, *parts: bytes) -> bytes:
    """Send the parts one after another and read until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for part in parts:
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(0.05)
    async with asyncio.timeout(30):
        received = await reader.read()
    writer.close()
    return received


async def test_a_connection_that_says_nothing_is_closed(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEAD_S", 0.2)
    monkeypatch.setattr(limits, "LINGER_S", 0.1)
    for start in (b"", b"GET / HTTP/1.1\r\nhost:"):
        received = await exchange(port, start)
        assert received.startswith(b"HTTP/1.1 408 ")
        assert b"headers did not arrive within 0.2 s" in received


async def test_a_later_request_on_the_same_connection_has_the_same_limit(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HEAD_S", 0.3)
    monkeypatch.setattr(limits, "LINGER_S", 0.1)
    received = await exchange(port, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", b"GET / HTTP/1.1\r\n")
    assert received.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 408 " in received


async def test_a_body_that_does_not_come_is_a_408(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BODY_S", 0.2)
    received = await exchange(port, b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nabc")
    assert received.startswith(b"HTTP/1.1 408 ")
    assert b"connection: close" in received


@pytest.mark.parametrize(
    "body", [b"zz\r\nabc", b"3\r\nabcde\r\n", b"-1\r\n", b"3\r\nabc\r\n3x3\r\nabc\r\n0\r\n\r\n"]
)
async def test_broken_chunks_are_a_400(port: int, monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    monkeypatch.setattr(limits, "LINGER_S", 0.1)
    head = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
    for parts in ([head + body], [head, body]):
        received = await exchange(port, *parts)
        assert received.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert received.count(b"HTTP/1.1 ") == 1
        assert b'{"error":{"message":' in received


@pytest.mark.parametrize("protocol", [b"websocket", b"h2c"])
async def test_an_offer_of_another_protocol_is_passed_over(
    port: int, protocol: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    head = b"host: a\r\nconnection: upgrade, close\r\nupgrade: %b\r\n" % protocol
    received = await exchange(port, b"GET / HTTP/1.1\r\n" + head + b"\r\n")
    assert received.startswith(b"HTTP/1.1 200 ")
    received = await exchange(port, b"POST / HTTP/1.1\r\n" + head + b"content-length: 3\r\n\r\nabc")
    assert received.startswith(b"HTTP/1.1 200 ")
    assert received.endswith(b"3")
    chunks = b"transfer-encoding: chunked\r\n\r\n", b"3\r\nabc\r\n", b"2\r\nde\r\n0\r\n\r\n"
    received = await exchange(port, b"POST / HTTP/1.1\r\n" + head, *chunks)
    assert received.endswith(b"5")
    assert not caplog.records


async def test_what_is_wrong_behind_a_whole_request_cuts_no_answer(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    whole = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc"
    begun = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz"
    for wrong in (b"\0\0\r\n\r\n", begun):
        for count in (1, 2, 3):
            received = await exchange(port, whole * count + wrong)
            assert received.count(b"HTTP/1.1 200 ") == count
            assert received.endswith(b"3")
    assert not caplog.records


async def test_a_client_that_leaves_ends_all_that_it_has_asked(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    whole = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc"
    for _ in range(5):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(whole * 5)
        await writer.drain()
        writer.transport.abort()
    assert (await exchange(port, whole.replace(b"host", b"connection: close\r\nhost"))).endswith(b"3")
    assert not caplog.records


async def test_a_tunnel_is_refused(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LINGER_S", 0.1)
    received = await exchange(port, b"CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n")
    assert received.startswith(b"HTTP/1.1 400 ")


async def test_who_asks_before_sending_too_much_is_refused_at_once(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_BODY_BYTES", 100)
    head = b"POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: %d\r\n\r\n"
    received = await exchange(port, head % 101)
    assert received.startswith(b"HTTP/1.1 413 ")
    monkeypatch.setattr(limits, "HEAD_S", 0.2)
    accepted = await exchange(port, head.replace(b"expect", b"connection: close\r\nexpect") % 100, b"x" * 100)
    assert accepted.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 ")
    assert accepted.endswith(b"100")


async def test_a_head_at_the_limit_passes_however_it_is_cut(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_HEAD_BYTES", 1000)
    start, end = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\nx: ", b"\r\n\r\n"
    for length, status in ((1000, b"200"), (1001, b"431")):
        filler = b"a" * (length - len(start) - len(end))
        if status == b"431":
            end = end[:3]  # still open when it has grown too long
            filler += b"a"
        received = await exchange(port, start, filler, end)
        assert received.startswith(b"HTTP/1.1 " + status)


async def test_large_bodies_share_a_budget_and_small_ones_always_fit(port: int) -> None:
    head = b"POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    most = BODIES_BYTES + FREE_BODY_BYTES
    writer.write(head % most + b"x" * (most - 1))
    await writer.drain()
    refused = b""
    while not refused.startswith(b"HTTP/1.1 503 "):  # until the first one has come so far
        refused = await exchange(port, head % (FREE_BODY_BYTES + 1000) + b"x" * (FREE_BODY_BYTES + 1000))
    assert b"retry-after: 5" in refused
    accepted = await exchange(port, head % FREE_BODY_BYTES + b"x" * FREE_BODY_BYTES)
    assert accepted.startswith(b"HTTP/1.1 200 ") and accepted.endswith(b"%d" % FREE_BODY_BYTES)
    writer.write(b"x")
    assert (await reader.read()).endswith(b"%d" % most)
    writer.close()
    accepted = await exchange(port, head % (2 * FREE_BODY_BYTES) + b"x" * 2 * FREE_BODY_BYTES)
    assert accepted.endswith(b"%d" % (2 * FREE_BODY_BYTES))
