"""What `octavo bench` itself can do: how many streams and tokens a core takes in, and how right its stamps are.

    python -m benchmarks.bench_client [--streams 500] [--rate 8000] [--seconds 20]
    python -m benchmarks.bench_client --sends       how late requests leave, by the timer
    python -m benchmarks.bench_client --truth       metrics of known answers, in real time, against the truth

The server is a script in another process, on the other core; the client has one core to itself. Both read
CLOCK_MONOTONIC, and the server notes when it wrote each event, so each stamp can be compared with the moment that the
bytes were handed to the system at the other end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.metadata
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import httptools
import numpy as np
import uvloop
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from benchmarks.engine import processor
from octavo.bench.client import Progress, run
from octavo.bench.measures import measure
from octavo.bench.pacing import Alarm
from octavo.bench.pool import fetch
from octavo.bench.record import Chunk, Kind, Run
from octavo.bench.target import discover
from octavo.bench.window import whole
from octavo.workload.request import Part, Request

TOKENS = 160
"""Of each answer."""
FIRST_S = 0.1
"""From a request to its first token."""


class Script(asyncio.Protocol):
    """A server's connection: events at even times."""

    stamps: dict[str, list[int]]
    """Of each request when it was read, and when each event with text was written."""
    gap_s: float

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._path = ""
        self._body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpRequestParser(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._path, self._body = url.decode(), b""

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        assert self._transport is not None
        if self._path == "/v1/models":
            self._whole(b'{"data":[{"id":"m"}]}', 200)
        elif self._path == "/stamps":
            self._whole(json.dumps(self.stamps).encode(), 200)
        elif not self._path.endswith("/completions"):
            self._whole(b"{}", 404)
        else:
            body = json.loads(self._body)
            name = str(len(self.stamps))
            self.stamps[name] = stamps = [time.perf_counter_ns()]
            Stream(self._transport, name, body["max_tokens"], len(body["prompt"]), stamps)

    def _whole(self, data: bytes, status: int) -> None:
        assert self._transport is not None
        self._transport.write(
            b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (status, len(data), data)
        )


class Stream:
    """An answer that is being given."""

    def __init__(
        self, transport: asyncio.Transport, name: str, tokens: int, asked: int, stamps: list[int]
    ) -> None:
        self._transport, self._tokens, self._asked, self._stamps = transport, tokens, asked, stamps
        self._loop = asyncio.get_running_loop()
        self._at = self._loop.time() + FIRST_S
        self._said = 0
        transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-request-id: %b\r\n"
            b"transfer-encoding: chunked\r\n\r\n" % name.encode()
        )
        self._loop.call_at(self._at, self._next)

    def _next(self) -> None:
        if self._transport.is_closing():
            return
        self._said += 1
        last = self._said == self._tokens
        data = (
            b'data: {"id":"cmpl-0123456789abcdef","object":"text_completion","created":1767225600,"model":"m",'
            b'"choices":[{"index":0,"text":" token","logprobs":null,"finish_reason":%b}],"usage":null}\n\n'
        ) % (b'"length"' if last else b"null")
        if last:
            data += (
                b'data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}\n\ndata: [DONE]\n\n'
                % (
                    self._asked,
                    self._tokens,
                )
            )
        data = b"%x\r\n%b\r\n" % (len(data), data)
        self._stamps.append(time.perf_counter_ns())
        self._transport.write(data + b"0\r\n\r\n" if last else data)
        if not last:
            self._at += Script.gap_s
            self._loop.call_at(self._at, self._next)


async def serve(gap_s: float) -> None:
    """The role of the server, until stdin ends."""
    Script.stamps, Script.gap_s = {}, gap_s
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Script, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


@contextlib.contextmanager
def served(gap_s: float, core: int) -> Iterator[str]:
    """The server in a process of its own, on `core`: its URL."""
    command = [sys.executable, "-m", "benchmarks.bench_client", "--role", f"{gap_s},{core}"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.communicate("")


def open_loop(streams: int, gap_s: float) -> Iterator[Request]:
    """Requests at even times, so many that `streams` of them run at once."""
    for index in itertools.count():
        yield Request(
            index=index,
            at_s=index * (FIRST_S + gap_s * (TOKENS - 1)) / streams,
            session=index,
            parts=(Part("shared", 200), Part(f"own/{index}", 56)),
            output_tokens=TOKENS,
        )


def deviations_us(found: Run, stamps: dict[str, list[int]], start_ns: int) -> np.ndarray[Any, Any]:
    """Of each event with text, how long after the server's write it was stamped."""
    late = []
    for exchange in found.exchanges:
        written = stamps.get(exchange.request_id or "", [])[1:]
        read = [chunk.at_us for chunk in exchange.chunks if chunk.kind & Kind.ANSWER]
        late += [at - (ns - start_ns) / 1000 for at, ns in zip(read, written, strict=False)]
    return np.array(late)


async def load(url: str, streams: int, gap_s: float, seconds: float) -> tuple[Run, dict[str, list[int]], int]:
    """A run; the server's stamps; the run's start by the clock."""
    starts: list[int] = []

    def note(progress: Progress) -> None:
        starts.append(time.perf_counter_ns() - round(progress.elapsed_s * 1e9))

    target = await discover(url, prompts="ids")
    found = await run(target, open_loop(streams, gap_s), max_s=seconds, drain_s=0.0, on_change=note)
    pool = target.pool()
    answer = await fetch(pool, b"GET /stamps HTTP/1.1\r\nhost: a\r\n\r\n", 60)
    await pool.close()
    return found, json.loads(answer.body), min(starts)


def report(console: Console, found: Run, stamps: dict[str, list[int]], start_ns: int, seconds: float) -> None:
    warm_us, end_us = round(seconds * 0.55e6), round(seconds * 1e6)  # all streams run by then
    samples = [one for one in found.client if warm_us < one.at_us < end_us]
    events = np.array([chunk.at_us for one in found.exchanges for chunk in one.chunks if chunk.tokens])
    rate = np.count_nonzero((events > warm_us) & (events < end_us)) / (end_us - warm_us) * 1e6
    cpu = np.mean([one.cpu for one in samples])
    lag = np.percentile([one.lag_us for one in samples], [50, 99])
    late = np.percentile(
        [one.sent_us - one.intended_us for one in found.exchanges if one.sent_us is not None], [50, 99, 100]
    )
    off = np.percentile(deviations_us(found, stamps, start_ns), [0, 50, 99, 99.9, 100])
    table = Table("", "", box=None, show_header=False)
    for name, value in (
        ("streams at once", f"{np.mean([one.running for one in samples]):.0f}"),
        ("tokens/s", f"{rate:,.0f}"),
        ("client's processor, cores", f"{cpu:.2f}"),
        ("of it for a token, µs", f"{cpu / rate * 1e6:.1f}"),
        ("lag of its loop p50, p99, ms", f"{lag[0] / 1e3:.2f}, {lag[1] / 1e3:.2f}"),
        ("requests sent late p50, p99, max, ms", ", ".join(f"{one / 1e3:.2f}" for one in late)),
        ("stamp after write min, p50, p99, p99.9, max, ms", ", ".join(f"{one / 1e3:.3f}" for one in off)),
        ("errors", str(sum(one.error not in (None, "client") for one in found.exchanges))),
    ):
        table.add_row(name, value)
    console.print(table)


def compare_truth(console: Console, found: Run, stamps: dict[str, list[int]], start_ns: int) -> None:
    """The metrics of a run beside those of the same run with the server's stamps in place of the client's."""
    table = Table("", "measured ms", "the server's own", "difference", box=None)
    told = [one for one in found.exchanges if one.error is None and one.request_id in stamps]
    true = []
    for one in told:
        read, *written = ((ns - start_ns) // 1000 for ns in stamps[one.request_id or ""])
        times = iter(written)
        chunks = [
            Chunk(
                next(times) if chunk.kind & Kind.ANSWER else written[-1],
                chunk.tokens,
                chunk.characters,
                chunk.kind,
            )
            for chunk in one.chunks
        ]
        true.append(
            replace(one, chunks=chunks, intended_us=read, started_us=read, sent_us=read, end_us=written[-1])
        )
    window = whole(found)
    ours, theirs = (measure(replace(found, exchanges=exchanges), window=window) for exchanges in (told, true))
    for metric in ("ttft", "ttft_intended", "tpot", "itl", "icl", "e2e"):
        for stat in ("p50", "p90", "p99", "max"):
            value, truth = (one.value(f"{metric}_{stat}") for one in (ours, theirs))
            if value is not None and truth is not None:
                difference = f"{(value - truth) * 1e3:+.3f}"
                table.add_row(f"{metric}_{stat}", f"{value * 1e3:.3f}", f"{truth * 1e3:.3f}", difference)
    console.print(table)


async def sends(make: Callable[[Callable[[], None]], Any], gap_s: float, count: int) -> list[float]:
    """How late, in ms, an alarm rings that is set `count` times, `gap_s` ahead."""
    late: list[float] = []
    done = asyncio.Event()
    due = 0

    def ring() -> None:
        nonlocal due
        late.append((time.perf_counter_ns() - due) / 1e6)
        if len(late) == count:
            done.set()
            return
        due = time.perf_counter_ns() + int(gap_s * 1e9)
        alarm.set(due)

    alarm = make(ring)
    due = time.perf_counter_ns() + int(gap_s * 1e9)
    alarm.set(due)
    await done.wait()
    alarm.close()
    return late


class Other:
    """A way to wait, for comparison: the loop's own timer, or turning round until the time has come."""

    def __init__(self, ring: Callable[[], None], *, spin_s: float) -> None:
        self._ring, self._spin_s = ring, spin_s
        self._loop = asyncio.get_running_loop()

    def set(self, at_ns: int) -> None:
        wait_s = (at_ns - time.perf_counter_ns()) / 1e9 - self._spin_s
        if not self._spin_s:
            self._loop.call_later(wait_s, self._ring)
        elif wait_s > 0:
            self._loop.call_later(wait_s, self.set, at_ns)
        elif time.perf_counter_ns() >= at_ns:
            self._ring()
        else:
            self._loop.call_soon(self.set, at_ns)

    def close(self) -> None:
        """Nothing is left."""


async def compare_alarms(console: Console) -> None:
    table = Table("", "late p50 ms", "p99 ms", "max ms", "processor, cores", box=None)
    ways: dict[str, Callable[[Callable[[], None]], Any]] = {
        "the loop's timer": lambda ring: Other(ring, spin_s=0.0),
        "1.5 ms early, then turning": lambda ring: Other(ring, spin_s=0.0015),
        "timerfd (what is used)": lambda ring: Alarm(ring, time.perf_counter_ns),
    }
    for name, make in ways.items():
        used, began = time.process_time(), time.perf_counter()
        late = await sends(make, 0.0101234, 500)
        cpu = (time.process_time() - used) / (time.perf_counter() - began)
        p50, p99, most = np.percentile(late, [50, 99, 100])
        table.add_row(name, f"{p50:.3f}", f"{p99:.3f}", f"{most:.3f}", f"{cpu:.3f}")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--rate", type=float, default=8000.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--sends", action="store_true")
    parser.add_argument("--truth", action="store_true")
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop")
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--role")
    options = parser.parse_args()
    if options.role:
        gap, core = options.role.split(",")
        os.sched_setaffinity(0, {int(core)})
        uvloop.run(serve(float(gap)))
        return
    console = Console()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[0]})
    console.print(
        f"{processor()}; Python {sys.version.split()[0]}, uvloop {importlib.metadata.version('uvloop')}"
    )
    if options.sends:
        uvloop.run(compare_alarms(console))
        return
    start = uvloop.run if options.loop == "uvloop" else asyncio.run
    gap_s = options.streams / options.rate
    with served(gap_s, cores[-1]) as url:
        if options.profile:
            import cProfile

            with cProfile.Profile() as profile:
                found = start(load(url, options.streams, gap_s, options.seconds))
            profile.dump_stats(options.profile)
        else:
            found = start(load(url, options.streams, gap_s, options.seconds))
    if options.truth:
        compare_truth(console, *found)
    else:
        report(console, *found, options.seconds)


if __name__ == "__main__":
    main()
