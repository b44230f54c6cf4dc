"""Where nobody reads a server's log, it serves on."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.conftest import Server
from tests.telemetry.test_stderr import F_SETPIPE_SZ, PIPE_BYTES


@pytest.fixture
def server(tiny_engine: dict[str, Any]) -> Iterator[Server]:
    server = Server(tiny_engine)
    yield server
    server.process.kill()
    server.end()


def _say_much(server: Server) -> None:
    """Some 20 kB of log."""
    for place in range(100):
        field = f"nobody_knows_{place:03}_{'x' * 40}"
        server.complete(prompt="x", max_tokens=1, **{field: 1})


def test_a_reader_that_stopped_reading_stops_nobody(server: Server) -> None:
    assert server.process.stderr is not None
    fcntl.fcntl(server.process.stderr, F_SETPIPE_SZ, PIPE_BYTES)
    _say_much(server)
    server.process.terminate()
    code, log = server.end()
    assert code == 0
    assert "nobody_knows_099" in log  # nothing was lost


@pytest.mark.slow
def test_a_reader_that_left_stops_nobody(server: Server) -> None:
    assert server.process.stderr is not None
    server.process.stderr.close()
    _say_much(server)
    assert server.client.get("/health").status_code == 200
    server.process.terminate()
    assert server.process.wait(30) == 0
