"""What the gateway costs: to decide, for each chunk of a stream, and requests in a second; with tiers that do nothing.

    python -m benchmarks.gateway [--seconds 5] [--policy policy.npz]

The gateway is `octavo route serve`'s own, in a process on one core. The null tier and the client, real sockets both,
have the other: the null tier writes ready-made bytes, so what is measured is the gateway's. A chunk carries the time at
which it was written (CLOCK_MONOTONIC, the same for all processes of a machine), so that its way is known to the
client; the same is measured without the gateway, and the difference is what it adds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import cast

import orjson
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.engine import processor
from octavo.bench.address import Address
from octavo.bench.connection import Failure
from octavo.bench.pool import Pool, fetch
from octavo.bench.sse import EventParser
from octavo.routing.asked import CHAT, Asked
from octavo.routing.decider import Decider
from octavo.routing.gateway import Gateway
from octavo.routing.policy_decider import PolicyDecider
from octavo.routing.tier_file import read_tiers

TIERS = """
[gateway]
names = ["auto"]
{}
[tiers.small]
url = "{}"
model = "null"
price = {{ input = 1, output = 2 }}
abilities = ["tools", "json"]
[tiers.large]
url = "{}"
model = "null"
price = {{ input = 10, output = 20 }}
[[rules]]
headers = {{ x-team = "law" }}
local_only = true
[[rules]]
languages = ["ja", "ko", "zh"]
tier = "large"
{}
"""
PROMPTS = (
    "What is the capital of Peru?",
    "A baker makes 24 loaves each day and sells half of them at $3 each. How much does she earn in 5 days?",
    "Please review this essay of mine: " + "the town where I grew up had one road and two shops. " * 20,
    "Explain the difference between a process and a thread, and when each of them is the better choice.",
)
GAP_S = 0.005
CHUNKS = 200

_REPLY = orjson.dumps({
    "id": "x", "object": "chat.completion", "created": 1, "model": "null",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 20, "completion_tokens": 1, "total_tokens": 21},
})  # fmt: skip
_WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
    len(_REPLY),
    _REPLY,
)
_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class NullTier(asyncio.Protocol):
    """Answers at once, or streams chunks that say when they were written."""

    def __init__(self) -> None:
        self._data = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by its class

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            found = re.search(rb"content-length: (\d+)", self._data[:end], re.IGNORECASE)
            size = end + 4 + (int(found[1]) if found else 0)
            if len(self._data) < size or self._transport is None:
                return
            body, self._data = self._data[end + 4 : size], self._data[size:]
            if b'"stream":true' in body:
                self._transport.write(_STREAM)
                self._chunk(0)
            else:
                self._transport.write(_WHOLE)

    def _chunk(self, number: int) -> None:
        if self._transport is None:
            return
        if number == CHUNKS:
            self._transport.write(_framed(b"data: [DONE]\n\n") + b"0\r\n\r\n")
            return
        choice = {"index": 0, "delta": {"content": " word"}, "finish_reason": None}
        event = orjson.dumps(
            {"object": "chat.completion.chunk", "at": time.monotonic_ns(), "choices": [choice]}
        )
        self._transport.write(_framed(b"data: " + event + b"\n\n"))
        asyncio.get_running_loop().call_later(GAP_S, self._chunk, number + 1)


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def _serve_null(core: int) -> None:
    os.sched_setaffinity(0, {core})
    server = await asyncio.get_running_loop().create_server(NullTier, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load")
    parser.add_argument("--policy", type=Path, help="a trained policy whose decisions are timed too")
    parser.add_argument(
        "--last-core", action="store_true", help="the gateway has the last core, not the first"
    )
    parser.add_argument("--null-tier", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.null_tier is not None:
        uvloop.run(_serve_null(given.null_tier))
        return
    console = Console(width=110)
    cores = sorted(os.sched_getaffinity(0), reverse=given.last_core)
    console.print(f"{processor()}, cores {cores[0]} (gateway) and {cores[-1]} (tier, client)")
    with tempfile.TemporaryDirectory() as folder:
        policy = None if given.policy is None else str(given.policy.absolute())
        uvloop.run(_decisions(console, Path(folder), policy))
        null = _started([sys.executable, "-m", "benchmarks.gateway", "--null-tier", str(cores[-1])])
        file = Path(folder) / "tiers.toml"
        file.write_text(TIERS.format("", null[1], null[1], ""))
        command = ["-m", "octavo", "route", "serve", str(file), "--port", "0", "--no-access-log"]
        os.sched_setaffinity(0, {cores[0]})  # which the gateway takes over
        gateway = _started([sys.executable, *command])
        os.sched_setaffinity(0, {cores[-1]})
        try:
            uvloop.run(_loads(console, null[1], gateway[1], gateway[0].pid, given.seconds))
        finally:
            for process in (gateway[0], null[0]):
                process.kill()
                process.wait()


def _started(command: list[str]) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    found = re.search(r"http://[\d.:]+", process.stdout.readline())
    assert found is not None, "it did not start"
    return process, found[0]


async def _decisions(console: Console, folder: Path, policy: str | None) -> None:
    """How long the body of a request, the rules and the decider take, in this process."""
    table = Table(title="To decide (ms): the body read, rules, the decider")
    for name in ("decider", "median", "99 %"):
        table.add_column(name, justify="left" if name == "decider" else "right")
    names = {"default tier": "", "starting policies": 'policy = "starting"'}
    if policy is not None:
        names["the policy given"] = f'policy = "{policy}"\ntiers = {{ weak = "small", strong = "large" }}'
    bodies = [
        orjson.dumps({"model": "auto", "messages": [{"role": "user", "content": prompt}]})
        for prompt in PROMPTS
    ]
    for name, text in names.items():
        file = folder / "decide.toml"
        url = "http://127.0.0.1:1"
        file.write_text(TIERS.format("", url, url, text and f"[decider]\n{text}"))
        tiers = read_tiers(file, {})
        decider: Decider | None = PolicyDecider.of(tiers, folder) if text else None
        gateway = Gateway(tiers, decider)
        took = []
        for number in range(2000):
            body = bodies[number % len(bodies)]
            began = time.perf_counter()
            await gateway.decide(Asked.read(CHAT, body, {}, None, 0.0))
            took.append(1e3 * (time.perf_counter() - began))
        took = took[200:]
        table.add_row(name, f"{statistics.median(took):.3f}", f"{statistics.quantiles(took, n=100)[98]:.3f}")
    console.print(table)


async def _loads(console: Console, null: str, gateway: str, pid: int, seconds: float) -> None:
    table = Table(title="Requests in a second, answers of one token, closed loop")
    for name in (
        "streams",
        "to the null tier",
        "through the gateway",
        "gateway's CPU, ms a request",
        "waited for the core, ms",
    ):
        table.add_column(name, justify="right")
    for streams in (4, 32):
        direct, _ = await _requests(null, streams, seconds)
        before = _times_ms(pid)
        through, count = await _requests(gateway, streams, seconds)
        ran_ms, waited_ms = (after - start for after, start in zip(_times_ms(pid), before, strict=True))
        cpu_ms = ran_ms / count
        figures = f"{direct:.0f}", f"{through:.0f}", f"{cpu_ms:.2f}", f"{waited_ms / count:.2f}"
        table.add_row(str(streams), *figures)
    console.print(table)
    table = Table(title=f"From a chunk's write to its read (ms), one every {1e3 * GAP_S:g} ms in each stream")
    for name in ("streams", "", "median", "99 %", "most"):
        table.add_column(name, justify="right")
    for streams in (1, 16):
        found = []
        cpu_ms = waited_ms = 0.0
        for name, url in (("the null tier", null), ("the gateway", gateway)):
            before = _times_ms(pid)
            delays = await _chunks(url, streams)
            ran_ms, waited_ms = (
                (after - start) / (streams * CHUNKS)
                for after, start in zip(_times_ms(pid), before, strict=True)
            )
            cpu_ms = ran_ms
            row = statistics.median(delays), statistics.quantiles(delays, n=100)[98], max(delays)
            found.append(row)
            table.add_row(str(streams), name, *(f"{value:.3f}" for value in row))
        added = [through - direct for direct, through in zip(*found, strict=True)]
        table.add_row(str(streams), "added", *(f"{value:+.3f}" for value in added))
        table.add_row(str(streams), "gateway's CPU a chunk", f"{cpu_ms:.3f}")
        table.add_row(str(streams), "… waited for the core", f"{waited_ms:.3f}")
    console.print(table)


def _times_ms(pid: int) -> tuple[float, float]:
    """How long a process has run, and how long it was ready to and others had its core (Linux)."""
    ran, waited, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    return int(ran) / 1e6, int(waited) / 1e6


def _request(address: Address, *, stream: bool) -> bytes:
    messages = [{"role": "user", "content": PROMPTS[0]}]
    body = orjson.dumps({"model": "auto", "messages": messages, "stream": stream})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {address.authority}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def _requests(url: str, streams: int, seconds: float) -> tuple[float, int]:
    """Answers in a second, and how many; the first half second is not counted."""
    address = Address.parse(url)
    pool = Pool(address)
    request = _request(address, stream=False)
    done = 0

    async def one() -> None:
        nonlocal done
        while True:
            answer = await fetch(pool, request, 30)
            assert answer.status == 200, answer.body
            done += 1

    tasks = [asyncio.create_task(one()) for _ in range(streams)]
    await asyncio.sleep(0.5)
    before, began = done, time.perf_counter()
    await asyncio.sleep(seconds)
    count, took = done - before, time.perf_counter() - began
    await _end(tasks, pool.close)
    return count / took, count


async def _chunks(url: str, streams: int) -> list[float]:
    """Of each chunk, how long it was on its way, in ms. The first ten of each stream warm up."""
    address = Address.parse(url)
    pool = Pool(address, clock_ns=time.monotonic_ns)
    request = _request(address, stream=True)
    delays: list[float] = []

    async def one() -> None:
        connection, _ = await pool.connect(new=True)
        reader = _Reader()
        connection.ask(request, reader)
        await reader.done
        delays.extend(reader.delays[10:])

    tasks = []
    for _ in range(streams):
        tasks.append(asyncio.create_task(one()))
        await asyncio.sleep(GAP_S / streams)  # as real streams, they are not in step
    await asyncio.gather(*tasks)
    await pool.close()
    return delays


class _Reader:
    """A stream's delays."""

    def __init__(self) -> None:
        self.delays: list[float] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._parser = EventParser()

    def headers(self, status: int, headers: dict[str, str], at_ns: int) -> None:
        assert status == 200

    def body(self, data: bytes, at_ns: int) -> None:
        for event in self._parser.feed(data):
            if event != b"[DONE]":
                self.delays.append((at_ns - orjson.loads(event)["at"]) / 1e6)

    def end(self, failure: Failure | None, at_ns: int) -> None:
        if failure is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(failure)


async def _end(tasks: Sequence[asyncio.Task[None]], close: Callable[[], Awaitable[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await close()


if __name__ == "__main__":
    main()
