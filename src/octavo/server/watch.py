"""GET /watch: what the engine does while somebody looks, as JSON lines (protocol/watch). Counts nothing for ever.

It is for `octavo plan --observe`: lengths, times and what prompts share, from which the load can be simulated again.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from array import array
from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

import octavo
from octavo.engine.client import EngineClient
from octavo.engine.journal import Record
from octavo.engine.messages import Stats, StepSeen
from octavo.errors import InvalidParameter
from octavo.memory.sizing import available_memory_bytes
from octavo.protocol import watch
from octavo.scheduling.outputs import FinishReason, SequenceOutput
from octavo.server.document import Operation
from octavo.server.serving import Serving
from octavo.server.streaming import STREAM_HEADERS
from octavo.timing.clock import WallClock

__all__ = ["BODIES", "OPERATIONS", "ROUTES", "Watch"]

EVERY_S = 0.25
"""Between two writes."""
MOST_LINES = 100_000
"""That wait to be written; more are left out."""
_ID_BYTES = 6
"""Of a block's id: a double of JSON holds it."""


async def watched(request: Request) -> Response:
    """What the server does for some seconds: JSON lines. The first says how it is set; without `seconds`, requests
    that are open follow, and that is all. Else each request is told when it begins (its length, and ids of its blocks,
    which are equal where prompts begin alike) and when it ends (when its tokens came), each step with what it computed,
    and counters. No text is told, and no token."""
    serving: Serving = request.app.state.serving
    serving.accept()
    return _Stream(serving, _seconds(request))


def _seconds(request: Request) -> int:
    """Raises InvalidParameter."""
    for name in request.query_params:
        if name != "seconds":
            raise InvalidParameter(
                f"{name[:60]} is no parameter of {watch.PATH}; there is seconds.", name[:60]
            )
    text = request.query_params.get("seconds", "0")
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) <= watch.MOST_SECONDS):
        raise InvalidParameter(
            f"seconds is {text[:40]!r}; it must be a whole number in 0 … {watch.MOST_SECONDS}.", "seconds"
        )
    return int(text)


class Watch:
    """A watcher of an engine client, which gathers lines. Everything is on the event loop."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._clock = WallClock()
        self._start_s = self._clock.now_s()
        self._secret = secrets.token_bytes(16)
        """So that ids of blocks say nothing to who does not see the requests."""
        self._block_size = client.info.block_size
        self._open: dict[str, _Seen] = {}
        self._tenants: dict[str, int] = {}
        self._count = 0
        self._lines: list[watch.Line] = []
        self._steps: list[watch.Worked] = []
        self._lost = 0

    def begin(self) -> None:
        self._lines.append(self._server())
        self._client.watch(self)

    def end(self) -> None:
        self._client.watching.remove(self)

    def take(self) -> list[watch.Line]:
        """What there is to tell since the last call."""
        lines, self._lines = self._lines, []
        if self._steps:
            lines.append(watch.Steps(steps=tuple(self._steps)))
            self._steps = []
        if (stats := self._client.stats) is not None:
            lines.append(watch.Gauges(at_s=self._now_s, stats=stats))
        if self._lost:
            lines.append(watch.Lost(lines=self._lost))
            self._lost = 0
        return lines

    def on_request(self, record: Record) -> None:
        self._count += 1
        prompt, params = record.prompt, record.params
        seen = self._open[record.request_id] = _Seen(self._count, record)
        for start in range(0, len(prompt) - self._block_size + 1, self._block_size):
            seen.blocks.append(self._block(seen, prompt[start : start + self._block_size]))
        self._put(
            watch.Asked(
                id=seen.number,
                at_s=record.arrival_s - self._start_s,
                prompt_tokens=len(prompt),
                blocks=tuple(seen.blocks),
                answers=params.n,
                max_tokens=params.max_tokens,
                had=len(record.output(0)),
                tenant=self._tenants.setdefault(record.service.tenant, len(self._tenants)),
                priority=record.service.priority,
                pooling=record.pooling is not None,
            )
        )

    def on_output(self, output: SequenceOutput) -> None:
        seen = self._open.get(output.request_id)
        if seen is not None:
            seen.cached_tokens = max(seen.cached_tokens, output.cached_tokens)
            if output.samples:
                seen.chunks.append((self._now_s, len(output.samples)))

    def on_end(self, request_id: str, reason: FinishReason) -> None:
        seen = self._open.pop(request_id, None)
        if seen is None:
            return
        record = seen.record
        whole = (*record.prompt, *record.output(0))
        start = len(seen.blocks) * self._block_size
        added = [
            self._block(seen, whole[at : at + self._block_size])
            for at in range(start, len(whole) - self._block_size + 1, self._block_size)
        ]
        self._put(
            watch.Answered(
                id=seen.number,
                end_s=self._now_s,
                reason=reason,
                output_tokens=record.delivered,
                cached_tokens=seen.cached_tokens,
                chunks=tuple(seen.chunks),
                blocks=tuple(added),
            )
        )

    def on_step(self, step: StepSeen | None, stats: Stats) -> None:
        if step is None:
            return
        if len(self._steps) >= MOST_LINES:
            self._lost += 1
            return
        began_s, ended_s = step.began_s - self._start_s, step.ended_s - self._start_s
        self._steps.append(watch.Worked(began_s, ended_s, step.idle, *step.load))

    @property
    def _now_s(self) -> float:
        return self._clock.now_s() - self._start_s

    def _put(self, line: watch.Line) -> None:
        if len(self._lines) >= MOST_LINES:
            self._lost += 1
        else:
            self._lines.append(line)

    def _block(self, seen: _Seen, tokens: Sequence[int]) -> int:
        """The id of the next block. It depends on whose computed blocks the request may find."""
        start = seen.last or seen.record.cache_salt.encode()
        whole = start + b"\0" + array("I", tokens).tobytes()
        seen.last = hashlib.blake2b(whole, key=self._secret, digest_size=16).digest()
        return int.from_bytes(seen.last[:_ID_BYTES], "little")

    def _server(self) -> watch.Server:
        config, info = self._client.config, self._client.info
        return watch.Server(
            octavo=octavo.__version__,
            model=info.model,
            backend=info.backend,
            threads=info.threads,
            policy=config.policy,
            allocator=config.allocator,
            prefix_cache=config.prefix_cache,
            max_running=info.capacity.max_running,
            max_step_tokens=config.max_step_tokens,
            max_model_len=info.capacity.max_model_len,
            num_blocks=info.num_blocks,
            block_size=info.block_size,
            block_bytes=info.block_bytes,
            kv_dtype=info.kv_dtype,
            memory_utilization=config.memory_utilization,
            free_memory_bytes=available_memory_bytes(),
            tbt_target_s=config.tbt_target_s,
            ttft_target_s=config.ttft_target_s,
            profile=config.profile,
            priority_aging_s=config.priority_aging_s,
            # The path of a draft model is nobody's business.
            speculation=config.speculation.partition(":")[0],
            speculation_tokens=config.speculation_tokens,
            cache_disk=config.cache_disk is not None,
        )


class _Seen:
    """A request that is watched."""

    __slots__ = ("blocks", "cached_tokens", "chunks", "last", "number", "record")

    def __init__(self, number: int, record: Record) -> None:
        self.number = number
        self.record = record
        self.blocks: list[int] = []
        self.last = b""
        self.cached_tokens = 0
        self.chunks: list[tuple[float, int]] = []


class _Stream(Response):
    """Lines until the reader leaves or the server shuts down."""

    def __init__(self, serving: Serving, seconds: int) -> None:
        super().__init__(headers=STREAM_HEADERS, media_type="application/x-ndjson")
        del self.headers["content-length"]
        self._serving = serving
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        left = asyncio.create_task(_gone(receive))
        seen = Watch(self._serving.client)
        seen.begin()
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            until_s = time.monotonic() + self._seconds
            while not left.done():
                data = b"".join(msgspec.json.encode(line) + b"\n" for line in seen.take())
                over = time.monotonic() >= until_s or self._serving.draining or self._serving.client.dead
                if data or over:
                    await send({"type": "http.response.body", "body": data, "more_body": not over})
                if over:
                    break
                await asyncio.wait([left], timeout=min(EVERY_S, max(until_s - time.monotonic(), 0.0)))
        finally:
            seen.end()
            left.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


ROUTES = (Route(watch.PATH, watched),)
BODIES: dict[str, type] = {}
OPERATIONS = {
    watch.PATH: Operation(
        reply={"type": "string"},
        media_type="application/x-ndjson",
        query={"seconds": {"type": "integer", "minimum": 0, "maximum": watch.MOST_SECONDS, "default": 0}},
        refusals=(400,),
    )
}
