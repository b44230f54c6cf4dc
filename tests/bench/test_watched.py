"""Watching a server from outside: what it tells is taken in, and what is wrong is said in a sentence."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
import pytest

from octavo.bench.watched import Watched, observe
from octavo.errors import BenchError
from octavo.protocol.watch import Asked, Lost
from tests.planning.watching import SETTING, server

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\n\r\n"
LINES = b"".join(
    msgspec.json.encode(line) + b"\n"
    for line in (
        server(SETTING),
        Asked(id=1, at_s=0.1, prompt_tokens=20, blocks=(7,), answers=1, max_tokens=5),
        Lost(lines=3),
    )
)


@asynccontextmanager
async def answering(parts: Sequence[bytes], asked: list[bytes], *, stays: bool) -> AsyncIterator[str]:
    """A server that sends this, and then waits or closes."""
    over = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        for part in parts:
            writer.write(part)
            await writer.drain()
        if stays:
            await over.wait()
        writer.close()

    host = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{host.sockets[0].getsockname()[1]}"
    finally:
        over.set()
        host.close()
        with contextlib.suppress(asyncio.CancelledError):
            await host.wait_closed()


async def seen_of(
    parts: Sequence[bytes], *, for_s: float = 0.3, stays: bool = True, key: str | None = None
) -> Watched:
    asked: list[bytes] = []
    async with answering(parts, asked, stays=stays) as url:
        return await observe(url, for_s, key=key)


def test_lines_are_taken_in_wherever_they_are_cut() -> None:
    found = asyncio.run(seen_of([HEAD, LINES[:50], LINES[50:200], LINES[200:]]))
    assert found.server is not None and found.server.policy == "stall-free"
    assert found.asked[1].blocks == (7,) and found.lost == 3 and found.cut is None
    assert 0.3 <= found.length_s < 5


def test_it_can_be_ended_before_its_time_and_sends_its_key() -> None:
    async def ended() -> tuple[Watched, bytes]:
        asked: list[bytes] = []
        async with answering([HEAD, LINES], asked, stays=True) as url:
            stop = asyncio.Event()
            asyncio.get_running_loop().call_later(0.1, stop.set)
            return await observe(url, 60, key="secret", stop=stop), asked[0]

    found, request = asyncio.run(ended())
    assert found.length_s < 30 and b"authorization: Bearer secret\r\n" in request
    assert request.startswith(b"GET /watch?seconds=61 HTTP/1.1\r\n")


def test_a_server_that_goes_leaves_what_it_told() -> None:
    found = asyncio.run(seen_of([HEAD, LINES], for_s=60, stays=False))
    assert found.asked and found.cut == "the server ended it"


@pytest.mark.parametrize(
    ("parts", "key", "said"),
    [
        (
            [b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"],
            None,
            "answers 404, so this is no Octavo server",
        ),
        ([b"HTTP/1.1 401 No\r\ncontent-length: 0\r\n\r\n"], None, "wants an API key, and none was given"),
        ([b"HTTP/1.1 401 No\r\ncontent-length: 0\r\n\r\n"], "k", "the key that was given is not accepted"),
        ([b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n"], None, "still being loaded"),
        ([HEAD, b"<html>\n"], None, "tells something else than Octavo does"),
        ([HEAD], None, "ended without a word"),
    ],
)
def test_what_is_no_octavo_server(parts: Sequence[bytes], key: str | None, said: str) -> None:
    with pytest.raises(BenchError, match=said):
        asyncio.run(seen_of(parts, key=key, stays=False))


def test_nobody_there() -> None:
    with pytest.raises(BenchError, match="cannot be reached: connection refused; is it running"):
        asyncio.run(observe("http://127.0.0.1:1", 1))
