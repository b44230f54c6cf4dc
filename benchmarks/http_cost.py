"""What a streamed token costs the server process: HTTP, JSON, text, bookkeeping; over an engine that computes nothing.

    python -m benchmarks.http_cost [--streams 64] [--rate 100]
    python -m benchmarks.http_cost --logs       what a line for each request adds to answers of one token

The server is `octavo serve`'s own, on one core; the null engine (benchmarks/null_engine.py, over the real wire) and
the client (real sockets) have the other. The CPU time of the server process by the tokens it sent says how many a
core carries; where the machine is busy and the server late, several go out in one event, which costs less. Below it,
the machine's limit: an ASGI application on the same uvicorn that sends ready-made chunks of the same size.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import orjson
import psutil
import uvicorn
import uvloop
from rich.console import Console
from rich.table import Table
from starlette.types import Receive, Scope, Send

from benchmarks.engine import processor
from octavo.config import EngineConfig
from octavo.models.store import open_model
from octavo.server.edge import Edge
from octavo.server.run import run
from octavo.telemetry.logs import LogFormat, configure
from octavo.telemetry.stderr import unblock_stderr

TOKENS = 256
"""Of each answer. A stream that has ended starts again."""
WARM_S = 2.0
MESSAGES = [{"role": "user", "content": "What is an octavo, and why did it make books cheap?"}]
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": MESSAGES}),
    "chat, usage at the end": (
        "/v1/chat/completions",
        {"messages": MESSAGES, "stream_options": {"include_usage": True}},
    ),
    "chat, ids of each event": ("/v1/chat/completions", {"messages": MESSAGES, "return_token_ids": True}),
    "chat, usage in each event": (
        "/v1/chat/completions",
        {"messages": MESSAGES, "stream_options": {"continuous_usage_stats": True}},
    ),
    "chat, top_logprobs 2": (
        "/v1/chat/completions",
        {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2},
    ),
    "completions": ("/v1/completions", {"prompt": "An octavo is"}),
    "completions, n 4": ("/v1/completions", {"prompt": "An octavo is", "n": 4}),
}
"""What is measured: the route and the request."""
ONE_TOKEN = {"chat of one token": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 1})}
LOGS = ("off", "text", "json", "off")
"""Without twice, which shows how far two runs of the same lie apart."""


class Reader(asyncio.Protocol):
    """One connection: asks, counts events, and asks again."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.events = 0
        self._kept = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by class
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        data = self._kept + data
        self.events += data.count(b"data: {") - self._kept.count(b"data: {")
        ended = b"data: [DONE]\n\n" in data
        self._kept = b"" if ended else data[-16:]  # a mark may be cut in two
        if ended:
            self.transport.write(self.request)

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            raise exc


class Run(NamedTuple):
    """Of one measurement."""

    tokens_per_s: float
    merged: float
    """Tokens in an event: above 1 where the server was late, and so sent several as one."""
    cpu_us: float
    """Of the server process, for one token."""
    busy: float
    """CPU seconds of the server process a second."""


async def measure(
    port: int, pid: int, request: bytes, streams: int, seconds: float, *, counted: bool = True
) -> Run:
    """`streams` connections for so long. `counted`: the server counts the tokens; else each event has one."""
    loop = asyncio.get_running_loop()
    readers = []
    for _ in range(streams):
        _, reader = await loop.create_connection(lambda: Reader(request), "127.0.0.1", port)
        readers.append(reader)
    process = psutil.Process(pid)
    await asyncio.sleep(WARM_S)
    tokens = await asyncio.to_thread(tokens_of, port) if counted else 0
    began, cpu, events = time.perf_counter(), cpu_s(process), sum(reader.events for reader in readers)
    await asyncio.sleep(seconds)
    lasted = time.perf_counter() - began
    used, events = cpu_s(process) - cpu, sum(reader.events for reader in readers) - events
    tokens = await asyncio.to_thread(tokens_of, port) - tokens if counted else events
    for reader in readers:
        reader.transport.abort()
    await asyncio.sleep(0.5)
    return Run(tokens / lasted, tokens / events, 1e6 * used / tokens, used / lasted)


def tokens_of(port: int) -> int:
    """All that the server has generated."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        text = response.read().decode()
    return int(float(re.findall(r"^vllm:generation_tokens_total\{.*\} (\S+)$", text, re.MULTILINE)[0]))


def cpu_s(process: psutil.Process) -> float:
    """User and system time of this process alone, children left out."""
    times = process.cpu_times()
    return float(times.user + times.system)


def http_request(path: str, body: dict[str, Any]) -> bytes:
    """The bytes of a POST."""
    data = orjson.dumps({"model": "null", "stream": True, "max_tokens": TOKENS, "ignore_eos": True, **body})
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def start(role: str, *arguments: str) -> tuple[subprocess.Popen[str], int]:
    """This module in another process, in the role `role`: the process and its port."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.http_cost", "--role", role, *arguments],
            stdout=subprocess.PIPE,
            stderr=log if "--log" in arguments else None,
            text=True,
        )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def serve(model_dir: Path, rate: float, cores: Sequence[int], log: str) -> None:
    """The role of the server."""
    if log != "off":
        unblock_stderr()
        configure(cast(LogFormat, log), "info")
    os.sched_setaffinity(0, {cores[0]})
    command = (sys.executable, "-m", "benchmarks.null_engine", "--rate", str(rate), "--cpu", str(cores[-1]))
    run(
        EngineConfig(model_dir=str(model_dir)),
        model_name="null",
        port=0,
        engine_command=command,
        edge=Edge(access_log=log != "off"),
        on_ready=lambda address, _: print(address.rsplit(":", 1)[1], flush=True),
    )


def serve_bytes(rate: float, cores: Sequence[int]) -> None:
    """The role of the limit: chunks of the size of a chat's, one for each stream and step."""
    os.sched_setaffinity(0, {cores[0]})
    chunk = orjson.dumps({
        "object": "chat.completion.chunk", "id": "chatcmpl-" + 32 * "0", "created": 1_700_000_000, "model": "null",
        "system_fingerprint": "fp_0123456789", "choices": [
            {"index": 0, "delta": {"content": " octavo"}, "logprobs": None, "finish_reason": None}
        ],
    })  # fmt: skip
    event = b"data: " + chunk + b"\n\n"

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        await receive()
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        due = loop.time()
        for _ in range(TOKENS):
            due += 1 / rate
            await asyncio.sleep(due - loop.time())
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            print(self.servers[0].sockets[0].getsockname()[1], flush=True)

    config = uvicorn.Config(
        application, port=0, http="httptools", loop="none", lifespan="off", log_level="warning", ws="none"
    )
    uvloop.run(Server(config).serve())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2", help="whose vocabulary and template")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rate", type=float, default=100.0, help="steps of the engine a second")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--only", metavar="TEXT", default="", help="rows whose name has it")
    parser.add_argument("--logs", action="store_true", help="compare logs instead of routes")
    parser.add_argument("--log", choices=LOGS, default="off", help=argparse.SUPPRESS)
    parser.add_argument("--role", choices=("server", "limit"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if options.role == "server":
        serve(open_model(options.model).dir, options.rate, cores, options.log)
    elif options.role == "limit":
        serve_bytes(options.rate, cores)
    else:
        compare(options, cores)


def compare(options: Any, cores: Sequence[int]) -> None:
    """Measure every row, one after another, and print the table."""
    os.sched_setaffinity(0, {cores[-1]})
    table = Table(
        "answers", "tokens/s", "in an event", "server's CPU", "µs a token", "tokens/s of a core",
        title=f"{options.streams} streams, {options.rate:g} steps/s, {processor()}",
    )  # fmt: skip
    common = ("--rate", str(options.rate), "--model", options.model)
    runs: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
        ("server", BODIES, ()),
        ("limit", {"ready-made bytes": ("/", {})}, ()),
    ]
    if options.logs:
        runs = [
            ("server", {f"{name}, log {log}": row for name, row in ONE_TOKEN.items()}, ("--log", log))
            for log in LOGS
        ]
    for role, rows, more in runs:
        process, port = start(role, *common, *more)
        try:
            for name, (path, body) in rows.items():
                if options.only not in name:
                    continue
                streams = options.streams // body.get("n", 1)
                request = http_request(path, body)
                work = measure(port, process.pid, request, streams, options.seconds, counted=role == "server")
                done = uvloop.run(work)
                table.add_row(
                    name, f"{done.tokens_per_s:,.0f}", f"{done.merged:.2f}", f"{100 * done.busy:.0f} %",
                    f"{done.cpu_us:.1f}", f"{1e6 / done.cpu_us:,.0f}",
                )  # fmt: skip
        finally:
            process.terminate()
            process.wait()
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
