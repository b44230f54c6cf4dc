"""Clients that leave: streaming or not, running or queued. Their blocks are free again, and it counts as abort."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from tests.server.conftest import Server

ABORTED = 'vllm:request_success_total{finished_reason="abort"}'
ENDED = 'vllm:request_success_total{finished_reason="length"}'
ENDLESS = {"prompt": [70] * 200, "max_tokens": None, "ignore_eos": True}


def start(server: Server, body: dict[str, Any]) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    data = json.dumps(body).encode()
    connection.sendall(
        b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%b" % (len(data), data)
    )
    return connection


@pytest.mark.parametrize(
    "extra", [{"stream": True}, {}, {"n": 4, "stream": True}, {"echo": True, "logprobs": 1}]
)
def test_a_client_that_leaves_frees_its_blocks(server: Server, extra: dict[str, Any]) -> None:
    """Case 5."""
    before = server.metrics()[ABORTED]
    connection = start(server, {**ENDLESS, **extra})
    server.until(lambda: server.metrics()["vllm:num_requests_running"] > 0)
    connection.close()
    server.until_idle()
    assert server.metrics()[ABORTED] == before + 1


def test_clients_that_leave_the_queue_are_never_served(server: Server) -> None:
    """Cases 4 and 5: 200 blocks hold eight of these at once; some may end meanwhile."""
    before = server.metrics()
    bodies = [{**ENDLESS, "prompt": [70 + i] * 400, "stream": i % 2 == 0} for i in range(40)]
    connections = [start(server, body) for body in bodies]
    server.until(lambda: server.metrics()["vllm:num_requests_waiting"] > 0)
    for connection in connections[::-1]:
        connection.close()
    server.until_idle()
    left, ended = (server.metrics()[name] - before[name] for name in (ABORTED, ENDED))
    assert left + ended == 40 and left > 10
    server.complete(prompt="a", max_tokens=1)


def test_a_reader_that_stops_reading_does_not_stop_the_others(server: Server) -> None:
    stalled = start(server, {**ENDLESS, "stream": True, "n": 4})
    server.until(lambda: server.metrics()["vllm:num_requests_running"] > 0)
    server.complete(prompt="a", max_tokens=20)
    stalled.close()
    server.until_idle()
