"""A request that ends the engine, over HTTP with the real scheduler: it is found, and nobody else loses a token."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.faults.poisoned_engine import POISON
from tests.server.conftest import Server

COMMAND = (sys.executable, "-m", "tests.faults.poisoned_engine")
HONEST: list[dict[str, Any]] = [
    {
        "prompt": [70 + i, 71, 72],
        "max_tokens": 60 + 5 * i,
        "seed": i,
        "logprobs": 1,
        "ignore_eos": True,
        "n": 1 + i % 2,
    }
    for i in range(8)
]


@pytest.fixture
def poisoned(tiny_engine: dict[str, Any]) -> Iterator[Server]:
    server = Server(tiny_engine, engine_command=COMMAND)
    yield server
    assert server.stop() == 0


def test_the_culprit_gets_500_and_the_others_their_tokens(poisoned: Server) -> None:
    """Streamed and whole; and what is sent again, as clients do, does not end the engine again."""
    undisturbed = [poisoned.complete(**body)["choices"] for body in HONEST]
    assert len({str(one) for one in undisturbed}) == len(HONEST)
    prompt = [70, 71, POISON, 73]
    with ThreadPoolExecutor(9) as pool:
        whole = [pool.submit(poisoned.complete, **body) for body in HONEST[:4]]
        streamed = [pool.submit(poisoned.events, "/v1/completions", **body) for body in HONEST[4:]]
        refused = pool.submit(poisoned.post, "/v1/completions", prompt=prompt, max_tokens=9).result()
        assert [one.result()["choices"] for one in whole] == undisturbed[:4]
        for events, before in zip(streamed, undisturbed[4:], strict=True):
            assert text_of(events.result()) == {one["index"]: one["text"] for one in before}
    assert refused.status_code == 500
    assert "ended twice while it computed this request alone (the last time: signal 11)" in refused.text
    metrics = poisoned.metrics()
    assert metrics["octavo_requests_quarantined_total"] == 1
    # With all of nine, five, three, two of them, and alone, twice; fewer where others had ended by then.
    restarts = metrics["octavo_engine_restarts_total"]
    assert 2 <= restarts <= 7
    with (
        poisoned.openai(max_retries=5) as client,
        pytest.raises(openai.InternalServerError, match="not tried again") as error,
    ):
        client.completions.create(model="tiny", prompt=prompt, max_tokens=9)
    assert error.value.response.headers["x-should-retry"] == "false"
    assert error.value.code == "quarantined"
    assert poisoned.metrics()["octavo_engine_restarts_total"] == restarts
    poisoned.until_idle()


def text_of(events: list[Any]) -> dict[int, str]:
    texts: dict[int, str] = {}
    for event in events[:-1]:
        for choice in event["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    return texts
