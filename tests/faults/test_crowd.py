"""A crowd of bad clients beside honest ones: right answers, and nothing left of the crowd. How fast: benchmarks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

from benchmarks.connections import Crowd, settled, streams
from tests.processes import children_of
from tests.server.conftest import Server

SILENT, READERS = 2000, 200


@pytest.mark.slow
def test_honest_streams_beside_a_crowd(model_dir: Path) -> None:
    """2,000 connections that say nothing and 200 that read a byte a second (`benchmarks/connections.py` times them)."""
    server = Server({"model_dir": str(model_dir), "num_blocks": 1024})
    port = int(server.url.rpartition(":")[2])
    alone = asyncio.run(streams(port, 8, 64))
    process = psutil.Process(server.process.pid)
    server.until(lambda: len(children_of(server.process.pid)) == 2)  # the spare engine process is there
    Crowd(port, 20, 2).close()  # what is opened once and kept
    server.client.close()
    server.client = type(server.client)(base_url=server.url, timeout=600, trust_env=False)
    server.until(lambda: server.metrics()["octavo_connections"] == 1)
    files, threads = process.num_fds(), process.num_threads()
    crowd = Crowd(port, SILENT, READERS)
    settled(port)
    assert server.metrics()["octavo_connections"] > SILENT
    assert asyncio.run(streams(port, 8, 64)) == alone
    assert server.client.get("/health").json() == {"status": "ready"}
    assert process.num_fds() > SILENT
    crowd.close()
    server.until(lambda: server.metrics()["octavo_connections"] == 1)
    server.until_idle()
    server.until(lambda: process.num_fds() <= files)  # a connection that was cut off is closed in a moment
    assert process.num_threads() <= threads
    assert asyncio.run(streams(port, 8, 64)) == alone
    assert server.stop() == 0
