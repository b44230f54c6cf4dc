"""Bytes on the socket that are no right HTTP: the server answers 4xx or closes, and is as it was afterwards.

OCTAVO_FUZZ_SEED, OCTAVO_FUZZ_COUNT and OCTAVO_FUZZ_CASE as in test_bodies.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter

import psutil
import pytest

from tests.fuzz import mutator
from tests.fuzz.mutator import chosen, damaged, generator
from tests.server.conftest import Server

AT_ONCE = 32
QUIET_S = 0.15
"""A server that has said nothing for so long waits for more; then the client leaves."""
BODY = b'{"prompt": "x", "max_tokens": 1}'
HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n"
"""A request that a wrong reading of the one before would find."""

_METHODS = (
    b"GET",
    b"POST",
    b"HEAD",
    b"DELETE",
    b"PUT",
    b"OPTIONS",
    b"PATCH",
    b"TRACE",
    b"CONNECT",
    b"get",
    b"G\0T",
    b"PRI",
    b"M-SEARCH",
    b"A" * 500,
    b"",
)
_TARGETS = (
    b"/v1/completions",
    b"/health",
    b"*",
    b"",
    b"http://other/health",
    b"//",
    b"/%",
    b"/%00",
    b"/%ff%fe",
    b"/\xff",
    b"/v1/files/%2e%2e%2fetc",
    b"/v1/models/../../health",
    b"/?" + b"a" * 70_000,
    b"/health?x=%zz&x=1",
    b"a:1",
    b"/v1/responses/\xed\xa0\x80",
    b"/docs/..%2f..%2f",
    b"/v1/files?limit=1e9&order=x",
    b"/v1/batches?after=%00",
    b"/health#x",
    b"/health\t",
    b"/api/blobs/sha256:..",
    b"/v1/files?purpose=%ed%a0%80",
)
_VERSIONS = (
    b"HTTP/1.1",
    b"HTTP/1.0",
    b"HTTP/2.0",
    b"HTTP/0.9",
    b"HTTP/9.9",
    b"http/1.1",
    b"HTTP/1.1 x",
    b"",
    b"HTTP/1.\xff",
)
_HEADERS = (
    b"Content-Length: 0",
    b"Content-Length: -1",
    b"Content-Length: +32",
    b"Content-Length: 32, 32",
    b"Content-Length: 0x20",
    b"Content-Length: 99999999999999999999999",
    b"Content-Length: 1e3",
    b"Content-Length:",
    b"Content-Length : 32",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: identity",
    b"Transfer-Encoding: chunked, identity",
    b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding:\tchunked",
    b"Transfer-Encoding: \x0bchunked",
    b"Transfer-Encoding: gzip",
    b"TE: trailers",
    b"Expect: 100-continue",
    b"Expect: 200-ok",
    b"Connection: close",
    b"Connection: keep-alive, upgrade",
    b"Upgrade: websocket",
    b"Upgrade: h2c",
    b"HTTP2-Settings: AAMAAABkAAQAAP__",
    b"Connection: content-length",
    b"Host: b",
    b"Content-Type: application/json",
    b"Content-Type: \xff\xfe",
    b"Content-Encoding: gzip",
    b"Range: bytes=0-",
    b"X: \0",
    b"X: a\rb",
    b"X: a\n b",
    b" folded: x",
    b"\x80: x",
    b": x",
    b"X",
    b"X:" + b"y" * 70_000,
    b"Cookie: a=b; c",
    b"Authorization: Basic !!!",
    b"Origin: null",
    b"Forwarded: for=1",
    b"anthropic-version: 2023-06-01",
    b"A(B): c",
    b"If-None-Match: *",
    b"Accept-Encoding: *;q=0",
    b"Sec-WebSocket-Key: x",
    b"Trailer: Content-Length",
    b"Via: \xe2\x82\xac",
)
_CHUNKS = (
    b"20\r\n" + BODY + b"\r\n0\r\n\r\n",
    b"0\r\n\r\n",
    b"20;a=b\r\n" + BODY + b"\r\n0\r\nX: y\r\n\r\n",
    b"ffffffffffffffff\r\nx",
    b"-1\r\nx\r\n0\r\n\r\n",
    b"0x20\r\n" + BODY,
    b"20\n" + BODY + b"\n0\n\n",
    b"1\r\nxyz\r\n0\r\n\r\n",
    b"\r\n",
    b"020\r\n" + BODY,
    b"20\r\n" + BODY + b"\r\n0\r\nContent-Length: 5\r\n\r\n",
    b"1;" + b"e" * 70_000,
)


def sent(number: int) -> bytes:
    """What a connection sends: one to three requests, right ones and others."""
    random = generator(number, "http")
    data = b"".join(_request(random) for _ in range(random.choice((1, 1, 1, 2, 3))))
    if random.random() < 0.5:
        data = damaged(random, data)
    match random.randrange(40):
        case 0:
            data = random.randbytes(random.choice((1, 50, 5000)))
        case 1:  # TLS and HTTP/2, which come to a port of plain HTTP every day
            data = bytes.fromhex("16030100f8010000f40303") + random.randbytes(200)
        case 2:
            data = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + random.randbytes(30)
        case 3:
            data = random.choice((b"\r\n", b"\n", b" ", b"\0")) * random.choice((1, 1000, 70_000))
    return data


def _request(random: random.Random) -> bytes:
    def mostly(usual: bytes, others: tuple[bytes, ...]) -> bytes:
        return usual if random.random() < 0.75 else random.choice(others)

    end = b"\r\n" if random.random() < 0.95 else b"\n"
    lines = [
        b" ".join(
            (mostly(b"POST", _METHODS), mostly(b"/v1/completions", _TARGETS), mostly(b"HTTP/1.1", _VERSIONS))
        )
    ]
    headers = [b"Host: a", b"Content-Type: application/json"]
    chunked = random.random() < 0.4
    length = (
        len(BODY)
        if random.random() < 0.7
        else random.choice((0, 1, 31, 33, 10_000, 2**31, 2**63, 2**64 + 32))
    )
    if chunked:
        headers.append(b"Transfer-Encoding: chunked")
    if not chunked or random.random() < 0.3:
        headers.append(b"Content-Length: %d" % length)
    headers += [random.choice(_HEADERS) for _ in range(random.choice((0, 0, 1, 2, 5)))]
    if random.random() < 0.02:
        headers += [b"X-%d: y" % place for place in range(random.choice((200, 6000)))]
    random.shuffle(headers)
    body = random.choice(_CHUNKS) if chunked else BODY
    if random.random() < 0.2:
        body += HIDDEN
    return end.join([*lines, *headers, b"", b""]) + body


async def exchange(host: str, port: int, data: bytes) -> bytes:
    """Send `data` and read until the server closes or says nothing more; then leave."""
    reader, writer = await asyncio.open_connection(host, port)
    received = bytearray()
    try:
        writer.write(data)
        while True:
            async with asyncio.timeout(QUIET_S):
                more = await reader.read(1 << 16)
            if not more:
                break
            received += more
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.transport.abort()
    return bytes(received)


def connected(process: psutil.Process) -> list[object]:
    """Its connections, closed ones too that it has not let go of."""
    return [one for one in process.net_connections("tcp") if one.status != psutil.CONN_LISTEN]


def statuses_of(received: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]


def test_every_connection_ends_well(target: Server) -> None:
    attack(target, 250)


@pytest.mark.slow
def test_thousands_of_connections_end_well(target: Server) -> None:
    attack(target, 6000)


def attack(server: Server, few: int) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    assert server.client.get("/health").status_code == 200
    process = psutil.Process(server.process.pid)
    told: Counter[str] = Counter()
    failures: list[str] = []
    numbers = iter(chosen(few))

    async def one() -> None:
        for number in numbers:
            received = await exchange(host, int(port), sent(number))
            statuses = statuses_of(received)
            told.update(map(str, statuses) if statuses else ["nothing"])
            if any(status >= 500 for status in statuses):
                failures.append(
                    f"OCTAVO_FUZZ_SEED={mutator.SEED} OCTAVO_FUZZ_CASE={number}: {received[:300]!r}"
                )

    async def all_at_once() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(one())

    asyncio.run(all_at_once())
    print(f"{sum(told.values())} answers to {few} connections: {dict(sorted(told.items()))}")
    assert not failures, "\n".join([f"{len(failures)} failures", *failures[:20]])
    server.until_idle()
    server.until(lambda: len(connected(process)) <= 1)  # every connection has gone but for the client's own
    assert server.client.get("/health").status_code == 200
    if few >= 200:
        assert told["200"] > few // 40 and told["400"] > few // 10


_TWO = b"Host: a\r\nContent-Type: application/json\r\n"


_UNCLEAR = (
    b"Content-Length: 32\r\nTransfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: chunked\r\nContent-Length: 32\r\n",
    b"Content-Length: 32\r\nContent-Length: 0\r\n",
    b"Content-Length: 0\r\nContent-Length: 32\r\n",
    b"Content-Length: 32, 0\r\n",
    b"Content-Length: +32\r\n",
    b"Content-Length: 0x20\r\n",
    b"Content-Length: 3 2\r\n",
    b"Content-Length: -1\r\n",
    b"Content-Length : 32\r\n",
    b"Content-Length: 18446744073709551648\r\n",  # 32 in 64 bits
    b"Transfer-Encoding: chunked, identity\r\n",
    b"Transfer-Encoding: identity, chunked\r\nContent-Length: 32\r\n",
    b"Transfer-Encoding : chunked\r\n",
    b"Transfer-Encoding: xchunked\r\n",
    b"X: y\nTransfer-Encoding: chunked\r\nContent-Length: 32\r\n",
    b"X: y\r\n Transfer-Encoding: chunked\r\nContent-Length: 32\r\nTransfer-Encoding: chunked\r\n",
    b"X: \0\r\nContent-Length: 32\r\n",
)


async def test_where_a_request_ends_is_never_guessed(target: Server) -> None:
    """A proxy before this server may read another end; then a request would be hidden in the body of one before it."""
    host, port = target.url.removeprefix("http://").split(":")
    bodies = (BODY, b"20\r\n" + BODY + b"\r\n0\r\n\r\n", b"0\r\n\r\n")
    cases = [
        b"POST /v1/completions HTTP/1.1\r\n" + _TWO + head + b"\r\n" + body + HIDDEN
        for head in _UNCLEAR
        for body in bodies
    ]
    answers = await asyncio.gather(*(exchange(host, int(port), case) for case in cases))
    guessed = [
        (case, answer) for case, answer in zip(cases, answers, strict=True) if statuses_of(answer) != [400]
    ]
    assert not guessed


@pytest.mark.parametrize("length", [b"31", b"0"])
async def test_a_length_that_lies_costs_only_its_sender(target: Server, length: bytes) -> None:
    """What is left over of the body is read as the next request, and that is none."""
    host, port = target.url.removeprefix("http://").split(":")
    data = b"POST /v1/completions HTTP/1.1\r\n" + _TWO + b"Content-Length: " + length + b"\r\n\r\n" + BODY
    assert set(statuses_of(await exchange(host, int(port), data))) == {400}
