"""Clients that leave a server with too little memory, at every stage of their requests: nothing stays behind."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.conftest import Server
from tests.server.wire import send_request

ABORTED = 'vllm:request_success_total{finished_reason="abort"}'
ENDED = 'vllm:request_success_total{finished_reason="length"}'
WAITING, RUNNING = "vllm:num_requests_waiting", "vllm:num_requests_running"
PREEMPTED = "vllm:num_preemptions_total"


@pytest.fixture(scope="module")
def narrow(tiny_engine: dict[str, Any]) -> Iterator[Server]:
    """40 blocks, 6 slots, and a budget that cuts prompts into chunks: always somebody waits, is cut or gives way."""
    server = Server(
        {
            **tiny_engine,
            "num_blocks": 40,
            "max_running": 6,
            "max_step_tokens": 24,
            "prefix_cache": False,
        }
    )
    yield server
    assert server.stop() == 0


def body(number: int) -> dict[str, Any]:
    """The prompts and the numbers of tokens differ; every fifth has four children, of which two end early."""
    return {
        "prompt": [(number * 13 + place) % 200 + 70 for place in range(20 + 37 * (number % 5))],
        "max_tokens": 60 + number % 7 * 20,
        "n": 4 if number % 5 == 0 else 1,
        "seed": number,
        "temperature": 0 if number % 3 else 1,
        "ignore_eos": number % 5 > 0,
        "stream": number % 2 == 0,
    }


@pytest.mark.slow
def test_fifty_that_leave_at_any_time_leave_nothing_behind(narrow: Server) -> None:
    """Cases 4 and 5: half of 50 leave while queued, mid-chunk, mid-decode or preempted, streamed or not, one of four
    children at its end or not. The others' answers are those of an undisturbed server; at the end all is free."""
    before = narrow.metrics()
    connections = [send_request(narrow, "POST", "/v1/completions", body(number)) for number in range(50)]
    narrow.until(lambda: narrow.metrics()[WAITING] > 10 and narrow.metrics()[RUNNING] > 1)
    leaving = [number for number in range(50) if number % 4 in (1, 2)]
    for part in (leaving[20:], leaving[:10], leaving[10:20]):  # from the end of the queue, and what runs
        for number in part:
            connections[number].close()
        seen = narrow.metrics()[ABORTED] + narrow.metrics()[ENDED]
        narrow.until(lambda seen=seen: narrow.metrics()[ABORTED] + narrow.metrics()[ENDED] > seen)  # type: ignore[misc]
    answers = {number: whole(connections[number]) for number in range(50) if number not in leaving}
    narrow.until_idle()
    after = narrow.metrics()
    assert after["vllm:kv_cache_usage_perc"] == 0
    assert after[PREEMPTED] > before[PREEMPTED]
    left = after[ABORTED] - before[ABORTED]
    assert left > 10 and left + after[ENDED] - before[ENDED] + stopped(after) - stopped(before) == 50
    assert after["octavo_engine_restarts_total"] == 0
    for number in (0, 3, 4, 7, 40):
        assert whole(send_request(narrow, "POST", "/v1/completions", body(number))) == answers[number], number


def stopped(metrics: dict[str, float]) -> float:
    return metrics['vllm:request_success_total{finished_reason="stop"}']


def whole(connection: socket.socket) -> list[str]:
    """The texts of an answer, streamed or not."""
    data = bytearray()
    while not (
        data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        or (data.endswith(b"}") and b"content-length: " in data and b'"usage":{' in data)
    ):
        part = connection.recv(65536)
        assert part, bytes(data[-300:])
        data += part
    connection.close()
    if b"text/event-stream" not in data:
        return [choice["text"] for choice in json.loads(data.partition(b"\r\n\r\n")[2])["choices"]]
    texts: dict[int, str] = {}
    for event in re.findall(rb"^data: (\{.*\})$", data, re.MULTILINE):
        for choice in json.loads(event)["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    return [texts[index] for index in sorted(texts)]


def test_one_that_waits_for_a_whole_answer_is_given_up_within_a_step(narrow: Server) -> None:
    """Case 5: queued and not streaming. It is counted while those before it still run."""
    before = narrow.metrics()
    running = [
        send_request(narrow, "POST", "/v1/completions", {**body(1), "max_tokens": 400, "stream": True})
        for _ in range(6)
    ]
    narrow.until(lambda: narrow.metrics()[RUNNING] + narrow.metrics()[WAITING] == 6)
    queued = send_request(narrow, "POST", "/v1/completions", {**body(2), "stream": False})
    narrow.until(lambda: narrow.metrics()[RUNNING] + narrow.metrics()[WAITING] == 7)
    queued.close()
    narrow.until(lambda: narrow.metrics()[ABORTED] == before[ABORTED] + 1)
    narrow.until(lambda: narrow.metrics()[RUNNING] + narrow.metrics()[WAITING] == 6)
    for connection in running:
        connection.close()
    narrow.until_idle()
    assert narrow.metrics()[ABORTED] == before[ABORTED] + 7
