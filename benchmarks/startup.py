"""How soon `octavo serve` is ready, what it costs when idle, and how much memory its two processes take.

    python benchmarks/startup.py [--model smollm2] [--repeats 7] [-- options of octavo serve]

Ready is: GET /health answers 200, and then a completion of one token works. A first use has the model's file but
an empty store. Memory is the proportional set size (PSS) of both processes; "allowed" is what the weights and the KV
cache take, and 250 MB. Only a quiet machine gives figures worth keeping.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from octavo.models.store import open_model

STREAMS = 32
OUTPUTS = 128
"""Tokens that each of the streams gets."""
IDLE_S = 10.0
KV_BYTES = 256 << 20
"""Given to each server, so that what is allowed does not depend on the machine."""
BESIDE_BYTES = 250_000_000
"""What may be used beside weights and KV cache."""
DEADLINE_S = 120.0


class Server:
    """One running `octavo serve`."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.port = port

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, bytes]:
        """Status and body of one request. Raises OSError while nobody listens."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        try:
            headers = {"Content-Type": "application/json"}
            data = None if body is None else msgspec.json.encode(body)
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def complete(self, prompt: str, tokens: int) -> None:
        body = {"model": "m", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
        status, answer = self.ask("POST", "/v1/completions", body)
        assert status == 200, answer

    def processes(self) -> list[int]:
        """The server and its engine."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [self.process.pid, *map(int, children.split())]

    def pss_bytes(self) -> list[int]:
        rollups = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in self.processes()]
        return [int(text.partition("\nPss:")[2].split()[0]) * 1024 for text in rollups]

    def cpu_s(self) -> list[float]:
        tick = os.sysconf("SC_CLK_TCK")
        stats = [Path(f"/proc/{pid}/stat").read_text() for pid in self.processes()]
        return [sum(map(int, text.rpartition(")")[2].split()[11:13])) / tick for text in stats]


@contextmanager
def served(
    model: str, options: Sequence[str], cache: Path | None = None
) -> Iterator[tuple[Server, float, float]]:
    """A server, and the seconds from its start until /health said 200, and until a completion was there."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "octavo", "serve", model, "--port", str(port)]
    environment = dict(os.environ) if cache is None else {**os.environ, "OCTAVO_CACHE": str(cache)}
    began = time.perf_counter()
    process = subprocess.Popen(
        [*command, "--served-model-name", "m", *options],
        stdout=subprocess.DEVNULL,
        env=environment,
    )
    server = Server(process, port)
    try:
        while not _healthy(server):
            assert process.poll() is None, f"the server ended with code {process.returncode}"
            assert time.perf_counter() - began < DEADLINE_S, "the server is not ready"
            time.sleep(0.002)
        healthy = time.perf_counter() - began
        server.complete("Hello", 1)
        yield server, healthy, time.perf_counter() - began
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _healthy(server: Server) -> bool:
    try:
        return server.ask("GET", "/health")[0] == 200
    except OSError:
        return False


def first_use(source: Path, options: Sequence[str]) -> tuple[float, float]:
    """A start with an empty store."""
    cache = Path(tempfile.mkdtemp(prefix="octavo-startup-"))
    try:
        with served(str(source), options, cache) as (_, healthy, completed):
            return healthy, completed
    finally:
        shutil.rmtree(cache)


def streams(server: Server) -> None:
    """All at once, each with a prompt of its own."""
    prompts = [
        f"{number}. " + "An octavo is a sheet folded into eight leaves. " * 10 for number in range(STREAMS)
    ]
    with ThreadPoolExecutor(STREAMS) as pool:
        for _ in pool.map(lambda prompt: server.complete(prompt, OUTPUTS), prompts):
            pass


def idle_shares(server: Server) -> list[float]:
    """Of one processor, for each process, with nothing to do."""
    before = server.cpu_s()
    time.sleep(IDLE_S)
    return [(after - then) / IDLE_S for then, after in zip(before, server.cpu_s(), strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2", help="alias, path or hf: reference")
    parser.add_argument("--repeats", type=int, default=7, help="starts with a filled store")
    parser.add_argument("options", nargs="*", help="after --: options of octavo serve")
    arguments = parser.parse_args()
    model = open_model(arguments.model)
    options = ["--kv-memory", str(KV_BYTES), *arguments.options]

    starts = Table(
        "start", "/health is 200, s", "a completion works, s", title=f"{model.spec.name}: octavo serve"
    )
    starts.add_row(
        "first use, model on disk", *(f"{value:.2f}" for value in first_use(model.source, options))
    )
    times = []
    for _ in range(arguments.repeats):
        with served(arguments.model, options) as (_, healthy, completed):
            times.append((healthy, completed))
    for name, choose in (("best", min), ("median", statistics.median), ("worst", max)):
        starts.add_row(
            f"store filled, {name} of {len(times)}",
            *(f"{choose(each):.2f}" for each in zip(*times, strict=True)),
        )

    weights = sum(tensor.nbytes for tensor in model.tensors.values())
    memory = Table("memory (PSS), MB", "server", "engine", "both", "allowed")
    allowed = weights + KV_BYTES + BESIDE_BYTES
    with served(arguments.model, options) as (server, _, _):
        sizes = [("after the start", server.pss_bytes())]
        idle = idle_shares(server)
        streams(server)
        sizes.append((f"after {STREAMS} streams at once", server.pss_bytes()))
        idle_again = idle_shares(server)
    for name, parts in sizes:
        memory.add_row(name, *(f"{size / 1e6:.0f}" for size in (*parts, sum(parts), allowed)))
    memory.add_row("of that: weights, KV cache at most", "", f"{weights / 1e6:.0f}, {KV_BYTES / 1e6:.0f}")
    processor = Table(f"processor when idle, % of one over {IDLE_S:.0f} s", "server", "engine")
    for name, shares in (("after the start", idle), ("after the streams", idle_again)):
        processor.add_row(name, *(f"{share:.2%}" for share in shares))
    for table in (starts, memory, processor):
        Console().print(table)


if __name__ == "__main__":
    main()
