"""What a crowd of bad clients does to honest streams: 2,000 that say nothing, 200 that read a byte a second.

    python -m benchmarks.connections [--silent 2000] [--readers 200] [--pairs 6]

`octavo serve` runs as it is started by anybody. Eight streams are timed with the crowd and without it, in turns; what
counts is the ratio of a pair, and how the ratios spread. The crowd is a process of its own. A silent connection that is
closed (after 20 s) is opened again. A reader asks for a large answer for which nothing is computed: what a client has
computed it is given (keys share the engine among those who ask), and this is about what connections cost.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.engine import processor

__all__ = ["Crowd", "metric", "settled", "stream", "streams"]

READER_BUFFER = 4096
READER = b"GET /openapi.json HTTP/1.1\r\nhost: a\r\n\r\n"
"""What readers ask for: more than the buffers on the way hold, and nothing is computed for it."""


def request(path: str, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data


class Crowd:
    """The bad clients, in another process, from its start until `close`."""

    def __init__(self, port: int, silent: int, readers: int) -> None:
        """Returns when all are connected, and each reader has its first byte."""
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "benchmarks.connections", "--role", "crowd"),
                *("--port", str(port), "--silent", str(silent), "--readers", str(readers)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError("the crowd could not connect")

    def close(self) -> int:
        """All leave; how many silent ones had been closed by the server and came again."""
        again, _ = self._process.communicate("")
        return int(again)


async def crowd(port: int, silent: int, readers: int) -> int:
    """The role of the crowd, until stdin ends."""
    loop = asyncio.get_running_loop()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    again = -silent

    async def say_nothing() -> None:
        nonlocal again
        while True:
            again += 1
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                open_ones.release()
                await reader.read()
                writer.close()

    async def ask() -> socket.socket:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, READER_BUFFER)
        connection.setblocking(False)
        await loop.sock_connect(connection, ("127.0.0.1", port))
        await loop.sock_sendall(connection, READER)
        await loop.sock_recv(connection, 1)
        return connection

    async def read_bytes(connections: list[socket.socket]) -> None:
        while True:
            await asyncio.sleep(1)
            for connection in connections:
                with contextlib.suppress(OSError):
                    connection.recv(1)

    open_ones = asyncio.Semaphore(0)
    tasks = [asyncio.create_task(say_nothing()) for _ in range(silent)]
    for _ in range(silent):
        await open_ones.acquire()
    connections = await asyncio.gather(*(ask() for _ in range(readers)))
    tasks.append(asyncio.create_task(read_bytes(connections)))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    for connection in connections:
        connection.close()
    return again


async def stream(port: int, body: dict[str, Any]) -> str:
    """The text of a streamed completion."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request("/v1/completions", {**body, "stream": True}))
    try:
        data = bytearray()
        while not data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            part = await reader.read(1 << 16)
            if not part:
                raise ConnectionError(f"a stream ended early: {bytes(data[-200:])!r}")
            data += part
    finally:
        writer.close()
    texts = re.findall(rb'"text":("(?:[^"\\]|\\.)*")', data)
    return "".join(json.loads(text) for text in texts)


async def streams(port: int, count: int, tokens: int) -> list[str]:
    """The texts of so many at once, always the same."""
    bodies = [
        {"prompt": f"Number {place} is", "max_tokens": tokens, "ignore_eos": True, "seed": place}
        for place in range(count)
    ]
    return await asyncio.gather(*(stream(port, body) for body in bodies))


def metric(port: int, name: str) -> float:
    """The sum of a metric's samples."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        text = response.read().decode()
    return sum(float(value) for value in re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE))


def settled(port: int) -> None:
    """Nothing is being computed."""
    while metric(port, "vllm:num_requests_running") + metric(port, "vllm:num_requests_waiting"):
        time.sleep(0.1)


@contextlib.contextmanager
def served(model: str) -> Iterator[tuple[int, psutil.Process]]:
    """`octavo serve`: its port and its process. Without guesses, which would know the texts the second time."""
    with tempfile.TemporaryDirectory() as data:
        command = ["serve", model, "--port", "0", "--speculation", "off", "--data-dir", data]
        process = subprocess.Popen(
            [sys.executable, "-m", "octavo", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a line for each connection that says nothing
            text=True,
        )
        assert process.stdout is not None
        match = re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())
        try:
            if match is None:
                raise RuntimeError("the server did not start")
            yield int(match[1]), psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait()


def timed(port: int, count: int, tokens: int) -> float:
    """Tokens a second of all streams together."""
    began = time.perf_counter()
    asyncio.run(streams(port, count, tokens))
    return count * tokens / (time.perf_counter() - began)


def compare(options: argparse.Namespace) -> None:
    """Pairs in turns, and the table."""
    table = Table(
        "pair", "without: tokens/s", "with the crowd", "ratio", "server's memory, without and with",
        title=f"{options.streams} streams of {options.tokens} tokens; {options.silent} silent connections, "
        f"{options.readers} readers of a byte a second; {processor()}",
    )  # fmt: skip
    ratios, again = [], 0
    with served(options.model) as (port, process):
        timed(port, options.streams, options.tokens)
        for pair in range(options.pairs):
            speeds, memory = {}, {}
            for crowded in (False, True) if pair % 2 else (True, False):
                gathered = Crowd(port, options.silent, options.readers) if crowded else None
                settled(port)
                speeds[crowded] = timed(port, options.streams, options.tokens)
                memory[crowded] = process.memory_info().rss >> 20
                if gathered is not None:
                    again += gathered.close()
            ratios.append(speeds[True] / speeds[False])
            table.add_row(
                str(pair + 1), f"{speeds[False]:,.0f}", f"{speeds[True]:,.0f}", f"{ratios[-1]:.3f}",
                f"{memory[False]} → {memory[True]} MiB",
            )  # fmt: skip
        dropped = metric(port, "octavo_connections_dropped_total")
    table.add_section()
    table.add_row(
        "median", "", "", f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
        f"{again} came again, {dropped:.0f} cut off",
    )  # fmt: skip
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--silent", type=int, default=2000)
    parser.add_argument("--readers", type=int, default=200)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=384, help="of each stream")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--role", choices=["crowd"], help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "crowd":
        print(asyncio.run(crowd(options.port, options.silent, options.readers)))
    else:
        compare(options)


if __name__ == "__main__":
    main()
