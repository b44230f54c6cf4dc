"""Readers that stall and connections without end, on the wire: what they may cost, and that it is told why."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from octavo.errors import SettingsError
from octavo.server.connections import MAX_CONNECTIONS, TOLD, Connections, connections_allowed
from octavo.telemetry.metrics import Metrics
from tests.server.conftest import Server
from tests.server.wire import connect, request_bytes, rest_of, send_request

WIDE = {"prompt": [70] * 20, "max_tokens": 250, "ignore_eos": True, "stream": True, "logprobs": 20}
"""More than the buffers of the transport and of the kernel hold together: 400 kB."""
CHAT = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 250, "ignore_eos": True, "stream": True}


def dropped(server: Server, reason: str) -> float:
    return server.metrics()[f'octavo_connections_dropped_total{{,reason="{reason}"}}']


@pytest.fixture(scope="module")
def impatient(tiny_engine: dict[str, Any]) -> Iterator[Server]:
    """Waits a second for a reader, and has 8 connections."""
    server = Server(tiny_engine, send_timeout_s=1.0, max_connections=8)
    yield server
    assert server.stop() == 0


def test_readers_that_take_nothing_are_dropped_whatever_they_asked(impatient: Server) -> None:
    server = impatient
    alone = server.complete(prompt="Hello", max_tokens=60, seed=1)["choices"]
    file = server.client.post(
        "/v1/files", files={"file": ("a.txt", b"x" * 3_000_000)}, data={"purpose": "user_data"}
    ).json()["id"]
    background = server.post(
        "/v1/responses",
        input="a",
        max_output_tokens=250,
        ignore_eos=True,
        background=True,
        stream=True,
        top_logprobs=20,
        include=["message.output_text.logprobs"],
    )
    name = background.text.split('"id":"', 1)[1].split('"', 1)[0]
    asked = [
        ("POST", "/v1/completions", WIDE),
        ("POST", "/v1/completions", {**WIDE, "stream": False}),
        ("POST", "/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 20}),
        ("GET", f"/v1/responses/{name}?stream=true", None),
        ("GET", f"/v1/files/{file}/content", None),
    ]
    stalled = [send_request(server, *one, small=True) for one in asked]
    assert server.complete(prompt="Hello", max_tokens=60, seed=1)["choices"] == alone
    server.until(lambda: dropped(server, "stalled") == len(asked))
    server.until_idle()
    for connection in stalled:
        data, reset = rest_of(connection)
        assert data.startswith(b"HTTP/1.1 200 ") and reset
    assert server.metrics()["octavo_connections"] == 1  # who asks this


def test_a_slow_reader_that_takes_something_stays(impatient: Server) -> None:
    before = dropped(impatient, "stalled")
    connection = send_request(impatient, "POST", "/v1/completions", {**WIDE, "max_tokens": 100}, small=True)
    data = bytearray()
    while not data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
        part = connection.recv(16384)
        assert part
        data += part
    connection.close()
    assert dropped(impatient, "stalled") == before


@pytest.mark.slow
def test_a_reader_that_leaves_too_much_lying_is_dropped(tiny_engine: dict[str, Any]) -> None:
    server = Server(tiny_engine, send_timeout_s=0, stream_buffer_bytes=64 << 10)
    alone = server.complete(prompt="Hello", max_tokens=60, seed=1)["choices"]
    aborted = 'vllm:request_success_total{finished_reason="abort"}'
    wide = {**WIDE, "n": 4}
    stalled = [send_request(server, "POST", "/v1/completions", wide, small=True) for _ in range(2)]
    server.until(lambda: server.metrics()["vllm:num_requests_running"] > 0)
    assert server.complete(prompt="Hello", max_tokens=60, seed=1)["choices"] == alone
    server.until(lambda: dropped(server, "buffer_full") == 2)
    server.until_idle()
    assert server.metrics()[aborted] == 2
    assert all(rest_of(connection)[1] for connection in stalled)
    assert dropped(server, "stalled") == 0
    assert server.stop() == 0


def test_those_that_ask_nothing_make_room(impatient: Server) -> None:
    before = dropped(impatient, "idle")
    impatient.client.close()  # the crowd would push out what it keeps open
    impatient.client = type(impatient.client)(base_url=impatient.url, timeout=60, trust_env=False)
    crowd = [connect(impatient) for _ in range(40)]
    assert impatient.complete(prompt="a", max_tokens=1)
    assert dropped(impatient, "idle") >= before + 32
    assert impatient.metrics()["octavo_connections"] <= 8
    assert rest_of(crowd[0]) == (b"", False)
    for connection in crowd:
        connection.close()


def test_where_all_ask_a_new_one_is_told_and_only_health_is_answered(impatient: Server) -> None:
    impatient.client.close()  # its own connection would be the one to go
    impatient.client = type(impatient.client)(base_url=impatient.url, timeout=60, trust_env=False)
    half = request_bytes("POST", "/v1/completions", {"prompt": "a"})[:-1]
    crowd = [connect(impatient) for _ in range(8)]
    for connection in crowd:
        connection.sendall(half)  # its head has come: a request is under way
    settled(impatient)
    refused = send_request(impatient, "POST", "/v1/messages", {"model": "tiny"})
    data, _ = rest_of(refused)
    assert data.startswith(b"HTTP/1.1 529 ")  # in Anthropic's words
    assert b"as many connections as it may have" in data and b"connection: close" in data
    for connection in crowd:
        connection.sendall(b"}")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        connection.close()
    impatient.until(lambda: impatient.metrics()['octavo_requests_refused_total{,reason="connections"}'] >= 1)


def settled(server: Server) -> None:
    """The server has read what was sent: its health is told, though there is no room."""
    probe = send_request(server, "GET", "/health")
    assert probe.recv(65536).startswith(b"HTTP/1.1 200 ")
    probe.close()


def test_many_requests_at_once_on_a_connection_end_it(impatient: Server) -> None:
    some = connect(impatient)
    some.sendall(request_bytes("GET", "/version") * 16)
    answered = b""
    while answered.count(b"HTTP/1.1 200 ") < 16:
        answered += some.recv(65536)
    some.close()
    before = dropped(impatient, "pipelined")
    flood = connect(impatient)
    flood.sendall(request_bytes("GET", "/version") * 3000)
    rest_of(flood)
    impatient.until(lambda: dropped(impatient, "pipelined") == before + 1)


def test_the_limit_of_open_files_is_raised_as_far_as_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [256, 1024]

    def raised(_: int, new: tuple[int, int]) -> None:
        limits[:] = new

    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", raised)
    assert connections_allowed(100) == 100
    assert limits == [256 + TOLD - 28, 1024]
    assert 100 < connections_allowed(None) < 1024
    assert limits == [1024, 1024]
    with pytest.raises(SettingsError, match=r"max-connections is 1000, and this process may open 1024 files"):
        connections_allowed(1000)
    limits[:] = [1024, 1 << 20]
    assert connections_allowed(None) == MAX_CONNECTIONS
    assert limits[0] < 2 * MAX_CONNECTIONS


def test_connections_notice_a_peer_that_is_gone() -> None:
    """The options that they inherit from the listener."""
    with socket.socket() as listener:
        Connections(Metrics("m"), send_timeout_s=30).prepare(listener)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 35_000
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == 64 << 10
