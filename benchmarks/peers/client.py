"""A small load generator: closed-loop streams over HTTP. Knows OpenAI's completions, and no server.

It speaks HTTP/1.1 on asyncio's streams itself: it shares two cores with the server, and a client library takes several
times as long for each token of 32 streams. The count of tokens is the one asked for, and an answer that ended for
another reason than its length, or that has another count in its usage, is an error.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["TIMEOUT_S", "Answer", "Load", "ask", "closed_loop"]

TIMEOUT_S = 300.0
"""For one request, waiting included."""


@dataclass(frozen=True)
class Answer:
    """One request's times, seconds."""

    first_s: float
    """Until the first token's event."""
    whole_s: float


@dataclass(frozen=True)
class Load:
    """All answers of a run."""

    answers: tuple[Answer, ...]
    seconds: float

    def rate(self, outputs: int) -> float:
        """Output tokens per second."""
        return outputs * len(self.answers) / self.seconds

    def first_ms(self, share: float) -> float:
        """The time to the first token that `share` of the answers stayed within, milliseconds."""
        times = sorted(answer.first_s for answer in self.answers)
        return 1e3 * times[min(len(times) - 1, int(share * len(times)))]


async def ask(port: int, body: dict[str, Any]) -> Answer:
    """One streamed completion. Raises RuntimeError or OSError."""
    async with asyncio.timeout(TIMEOUT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
        try:
            data = json.dumps({**body, "stream": True}).encode()
            writer.write(
                b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data)
            )
            began = time.perf_counter()
            first = finish = None
            async for event in _events(reader):
                if first is None:
                    first = time.perf_counter()
                if b'"finish_reason":null' not in event and b'"finish_reason": null' not in event:
                    for choice in json.loads(event).get("choices", ()):
                        finish = choice.get("finish_reason") or finish
            ended = time.perf_counter()
        finally:
            writer.close()
    if first is None or finish != "length":
        raise RuntimeError(f"a stream ended with finish_reason {finish!r}, not 'length'")
    return Answer(first - began, ended - began)


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The data of a response's events, without the last one that is no JSON."""
    head = await reader.readuntil(b"\r\n\r\n")
    status = head.split(b" ", 2)[1]
    if status != b"200":
        rest = await reader.read()
        raise RuntimeError(f"the server answered {status.decode()}: {rest[:300].decode(errors='replace')}")
    if b"transfer-encoding: chunked" not in head.lower():
        raise RuntimeError("the server did not stream its answer")
    kept = b""
    while size := int((await reader.readline()).split(b";")[0], 16):
        kept += (await reader.readexactly(size + 2))[:size]
        *events, kept = kept.replace(b"\r\n", b"\n").split(b"\n\n")
        for event in events:
            if event.startswith(b"data:") and not event.startswith(b"data: [DONE]"):
                yield event[5:]


async def closed_loop(port: int, bodies: Sequence[dict[str, Any]], streams: int) -> Load:
    """`streams` at once; each asks its next when it has its answer, until all bodies are used."""
    waiting = list(reversed(bodies))
    answers: list[Answer] = []

    async def stream() -> None:
        while waiting:
            answers.append(await ask(port, waiting.pop()))

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(stream())
    return Load(tuple(answers), time.perf_counter() - began)
