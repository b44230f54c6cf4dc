"""A server that answers by a script, on a real socket: each byte at its time. For tests that must know the truth.

Knows the wire formats of OpenAI-compatible servers, with what real ones do: several events in one write, events split
over writes, events without text, counts of tokens in every event or in one without a choice, errors in the middle,
connections cut. Run it in virtual time (`in_virtual_time`), and each stamp of a client is the script's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.bench.virtual_time import VirtualLoop, clock_ns, in_virtual_time

__all__ = [
    "DONE",
    "Answers",
    "Asked",
    "Cut",
    "Hang",
    "Reply",
    "Script",
    "ScriptedServer",
    "Step",
    "VirtualLoop",
    "chat_event",
    "clock_ns",
    "completion_event",
    "error_reply",
    "event",
    "in_virtual_time",
    "json_reply",
    "models_reply",
    "scripted",
    "usage",
    "usage_event",
]  # fmt: skip

DONE = b"data: [DONE]\n\n"
MODEL = "scripted"


class Cut(Exception):
    """As a step's data: the connection ends here. `reset`: by RST and not by FIN."""

    def __init__(self, reset: bool = False) -> None:
        self.reset = reset


class Hang(Exception):
    """As a step's data: nothing more comes, and the connection stays."""


@dataclass(frozen=True)
class Step:
    """A write, `after_s` after the one before it, or after the request was read."""

    after_s: float
    data: bytes | Cut | Hang


@dataclass(frozen=True)
class Reply:
    """An answer: headers with the first step's write (or at `headers_after_s`), then the steps."""

    steps: Sequence[Step] = ()
    status: int = 200
    content_type: str = "text/event-stream"
    framing: str = "chunked"
    """`chunked`, `length`, `close` (the body ends with the connection), or `none`: the headers are the reply's own."""
    headers: tuple[tuple[str, str], ...] = ()
    headers_after_s: float | None = None
    keep_alive: bool = True
    raw: bool = False
    """The steps are all there is: no status line, no framing."""


@dataclass
class Asked:
    """A request as it came."""

    index: int
    """Among those of the same path."""
    at_s: float
    """By the loop's time, when its last byte was read."""
    connection: int
    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    writes_s: list[float] = field(default_factory=list)
    """When each step was written."""
    left: bool = False
    """The client closed before the answer's end."""


Script = Callable[[Asked], Reply]


def event(value: object, *, end: str = "\n") -> bytes:
    """A server-sent event with JSON in it."""
    return f"data: {json.dumps(value)}{end}{end}".encode()


def chat_event(
    content: str | None = None, *, role: str | None = None, finish: str | None = None, **more: Any
) -> bytes:
    """A chunk of a chat answer. `reasoning_content`, `tool_calls` go to the delta; `token_ids`, `logprobs` to the
    choice; `usage` to the top."""
    delta: dict[str, Any] = {"role": role} if role else {}
    if content is not None:
        delta["content"] = content
    for name in ("reasoning_content", "reasoning", "tool_calls"):
        if name in more:
            delta[name] = more.pop(name)
    choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": finish}
    for name in ("token_ids", "logprobs"):
        if name in more:
            choice[name] = more.pop(name)
    return event(
        {"id": "chat-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": [choice]}
        | more
    )


def completion_event(text: str = "", *, finish: str | None = None, **more: Any) -> bytes:
    """A chunk of a completion."""
    choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": finish}
    for name in ("token_ids", "logprobs", "prompt_token_ids"):
        if name in more:
            choice[name] = more.pop(name)
    return event(
        {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": MODEL, "choices": [choice]}
        | more
    )


def usage(
    input_tokens: int, output_tokens: int, *, cached: int | None = None, reasoning: int | None = None
) -> Any:
    """The table with the counts of tokens."""
    table: dict[str, Any] = {
        "prompt_tokens": input_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": input_tokens + output_tokens,
    }
    if cached is not None:
        table["prompt_tokens_details"] = {"cached_tokens": cached}
    if reasoning is not None:
        table["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return table


def usage_event(input_tokens: int, output_tokens: int, **more: int | None) -> bytes:
    """The last chunk before `[DONE]`: counts, and no choice."""
    return event(
        {"id": "x", "object": "x", "created": 1, "model": MODEL, "choices": []}
        | {"usage": usage(input_tokens, output_tokens, **more)}
    )


def json_reply(value: object, status: int = 200, after_s: float = 0.0) -> Reply:
    """A whole JSON body."""
    return Reply((Step(after_s, json.dumps(value).encode()),), status, "application/json", "length")


def error_reply(status: int, message: str, param: str | None = None, after_s: float = 0.0) -> Reply:
    """An error as OpenAI's servers tell it."""
    return json_reply(
        {"error": {"message": message, "type": "bad", "param": param, "code": None}}, status, after_s
    )


def models_reply(*names: str) -> Reply:
    """What /v1/models says."""
    return json_reply({"object": "list", "data": [{"id": name, "object": "model"} for name in names]})


@dataclass(frozen=True, kw_only=True)
class Answers:
    """A script of a usual server: it streams as many tokens as `max_tokens` says, at fixed times."""

    ttft_s: float = 0.2
    """From the request to the first event with text."""
    gap_s: float = 0.05
    """Between events with text."""
    per_event: int = 1
    """Tokens in an event."""
    events_per_write: int = 1
    """Coalesced events: they leave together, at the time of the first."""
    word: str = " word"
    """What each token is."""
    input_tokens: int | None = None
    """None counts a list of token ids, and words else."""
    cached_tokens: int | None = None
    role_event: bool = True
    """A chat begins with an event that has only the role, at once."""
    usage: bool = True
    """`stream_options.include_usage` is heard."""
    continuous: bool = False
    """`stream_options.continuous_usage_stats` is heard."""
    token_ids: bool = False
    """`return_token_ids` is heard."""
    refuses: frozenset[str] = frozenset()
    """Fields for which the request is refused with a 400."""
    status: int = 200
    """Other than 200: an error is all it says, after `ttft_s`."""
    streams: bool = True
    models: tuple[str, ...] = (MODEL,)
    completions: bool = True
    """/v1/completions is there."""
    ids: bool = True
    """/v1/completions takes lists of token ids."""
    metrics: Callable[[], str] | None = None

    def __call__(self, asked: Asked) -> Reply:
        """The answer to one request."""
        match asked.path:
            case "/v1/models":
                return models_reply(*self.models)
            case "/metrics" if self.metrics is not None:
                return Reply((Step(0.0, self.metrics().encode()),), 200, "text/plain", "length")
            case "/v1/chat/completions":
                return self._answer(asked, chat=True)
            case "/v1/completions" if self.completions:
                return self._answer(asked, chat=False)
            case _:
                return error_reply(404, f"{asked.path} is not here")

    def _answer(self, asked: Asked, *, chat: bool) -> Reply:
        body = asked.body
        options = body.get("stream_options") or {}
        for name in self.refuses & (body.keys() | options.keys()):
            return error_reply(400, f"{name} is not known", name)
        prompt = body.get("prompt", "")
        if isinstance(prompt, list) and not self.ids:
            return error_reply(400, "prompt must be a string", "prompt")
        if self.status != 200:
            return error_reply(self.status, "it failed", after_s=self.ttft_s)
        count = body.get("max_tokens") or body.get("max_completion_tokens") or 16
        text = " ".join(str(one["content"]) for one in body.get("messages", ())) or prompt
        asked_tokens = self.input_tokens
        if asked_tokens is None:
            asked_tokens = len(text) if isinstance(text, list) else len(text.split())
        table = usage(asked_tokens, count, cached=self.cached_tokens)
        if not self.streams or not body.get("stream"):
            said = self.word * count
            inner = {"message": {"role": "assistant", "content": said}} if chat else {"text": said}
            choice = {"index": 0, "finish_reason": "length"} | inner
            whole = {"id": "x", "object": "x", "model": MODEL, "choices": [choice], "usage": table}
            return json_reply(whole, after_s=self.ttft_s + self.gap_s * (count - 1))
        events: list[tuple[float, bytes]] = []
        for place in range(0, count, self.per_event):
            took = min(self.per_event, count - place)
            more: dict[str, Any] = {}
            if self.token_ids and body.get("return_token_ids"):
                more["token_ids"] = list(range(1000 + place, 1000 + place + took))
            if self.continuous and options.get("continuous_usage_stats"):
                more["usage"] = usage(asked_tokens, place + took)
            if place + took == count:
                more["finish"] = "length"
            build = chat_event if chat else completion_event
            events.append((self.gap_s if place else self.ttft_s, build(self.word * took, **more)))
        steps = [Step(0.0, chat_event("", role="assistant"))] if chat and self.role_event else []
        for start in range(0, len(events), self.events_per_write):
            group = events[start : start + self.events_per_write]
            wait = group[0][0] + (self.gap_s * (self.events_per_write - 1) if start else 0.0)
            steps.append(Step(wait, b"".join(data for _, data in group)))
        if self.usage and options.get("include_usage"):
            steps.append(Step(0.0, usage_event(asked_tokens, count, cached=self.cached_tokens)))
        steps.append(Step(0.0, DONE))
        return Reply(steps)


class ScriptedServer:
    """Answers as its script says, and remembers what was asked."""

    def __init__(self, script: Script, stalls: Iterable[tuple[float, float]] = ()) -> None:
        self.script = script
        self.stalls = list(stalls)
        """From when to when, by the loop's time, nothing is written; what would have been is written at the end."""
        self.asked: list[Asked] = []
        self.connections = 0
        self.writers: list[asyncio.StreamWriter] = []
        """Of all connections that there were."""
        self.url = ""
        self._counts: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    def of(self, path: str) -> list[Asked]:
        """Those requests whose path ends so."""
        return [asked for asked in self.asked if asked.path.endswith(path)]

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        """On a free port of 127.0.0.1."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=tls)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{port}"

    async def stop(self) -> None:
        """Closes all connections."""
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        self.writers.append(writer)
        number = self.connections
        begun: bytes | None = b""
        try:
            while begun is not None:
                begun = await self._one(reader, writer, number, begun)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()

    async def _one(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int, begun: bytes
    ) -> bytes | None:
        """Takes in a request, of which `begun` was read, and answers it. Returns what was read of the next one; None
        where the connection ends."""
        head = (begun + await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.rstrip("\r\n").split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        data = await reader.readexactly(int(headers.get("content-length", "0")))
        loop = asyncio.get_running_loop()
        count = self._counts.get(path, 0)
        self._counts[path] = count + 1
        asked = Asked(count, loop.time(), number, method, path, headers, json.loads(data) if data else {})
        self.asked.append(asked)
        reply = self.script(asked)
        answer = asyncio.create_task(self._write(reply, writer, asked))
        more = asyncio.create_task(reader.read(1))  # a client that leaves, or its next request
        try:
            await asyncio.wait({answer, more}, return_when=asyncio.FIRST_COMPLETED)
            if more.done() and not more.result() and not answer.done():
                asked.left = True
                return None
            if not await answer:
                return None
            return await more or None
        finally:
            for task in (answer, more):
                task.cancel()
            await asyncio.gather(answer, more, return_exceptions=True)

    async def _write(self, reply: Reply, writer: asyncio.StreamWriter, asked: Asked) -> bool:
        pending = b"" if reply.raw else _head(reply)
        if reply.headers_after_s is not None:
            await self._sleep(reply.headers_after_s)
            writer.write(pending)
            pending = b""
        for step in reply.steps:
            await self._sleep(step.after_s)
            asked.writes_s.append(asyncio.get_running_loop().time())
            if isinstance(step.data, Cut):
                writer.write(pending)
                if step.data.reset:
                    sock = writer.get_extra_info("socket")
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    writer.transport.abort()
                return False
            if isinstance(step.data, Hang):
                writer.write(pending)
                await asyncio.Event().wait()
            assert isinstance(step.data, bytes)
            data = step.data
            if reply.framing == "chunked" and not reply.raw:
                data = b"%x\r\n%b\r\n" % (len(data), data)
            writer.write(pending + data)
            pending = b""
        if reply.framing == "chunked" and not reply.raw:
            pending += b"0\r\n\r\n"
        if pending:
            writer.write(pending)
        return reply.keep_alive and reply.framing != "close" and not reply.raw

    async def _sleep(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if seconds > 0:
            await asyncio.sleep(seconds)
        for begin, end in self.stalls:
            if begin <= loop.time() < end:
                await asyncio.sleep(end - loop.time())


def _head(reply: Reply) -> bytes:
    lines = [f"HTTP/1.1 {reply.status} X", f"content-type: {reply.content_type}"]
    if reply.framing == "chunked":
        lines.append("transfer-encoding: chunked")
    elif reply.framing == "length":
        size = sum(len(step.data) for step in reply.steps if isinstance(step.data, bytes))
        lines.append(f"content-length: {size}")
    if not reply.keep_alive or reply.framing == "close":
        lines.append("connection: close")
    lines += [f"{name}: {value}" for name, value in reply.headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


@contextlib.asynccontextmanager
async def scripted(
    script: Script, *, stalls: Iterable[tuple[float, float]] = (), tls: ssl.SSLContext | None = None
) -> AsyncIterator[ScriptedServer]:
    """A server for the time of a `with`. Stalls are in seconds from now."""
    now = asyncio.get_running_loop().time()
    server = ScriptedServer(script, [(now + begin, now + end) for begin, end in stalls])
    await server.start(tls)
    try:
        yield server
    finally:
        await server.stop()
