"""Limits as clients meet them: refused before a byte of an answer, in their API's words, and honest at the end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import pytest

from octavo.errors import Overloaded
from octavo.protocol.errors import RequestRefused
from octavo.sampling.params import EMBEDDING, SamplingParams
from octavo.server.access import Access, Key, Limits
from octavo.server.admission import TICKET, Admission, Cost
from octavo.server.allowance import Allowance
from octavo.server.keys import ALLOWANCE
from octavo.telemetry.metrics import Metrics
from tests.server.conftest import Server
from tests.server.test_lifecycle import engine_pid

MODEL_LEN = 100

# Without a server: what is counted.


class Gate:
    """An Admission over an idle engine, and one key."""

    def __init__(self, **access: Any) -> None:
        self.now = 0.0
        self.metrics = Metrics("m")
        capacity = SimpleNamespace(max_running=4, max_model_len=MODEL_LEN)
        client = SimpleNamespace(info=SimpleNamespace(capacity=capacity), open_sequences=0, slack_sequences=0)
        self.admission = Admission(cast(Any, client), self.metrics)
        limits = Limits(**{name: access.pop(name) for name in Limits.__struct_fields__ if name in access})
        self.admission.change(Access(**access))
        self.allowance = Allowance(Key(name="a", digest=b"", limits=limits), lambda: self.now)

    def take(self, prompts: list[int], within: bool = False, slack: bool = False, **params: Any) -> Any:
        cost = Cost.of([[1] * count for count in prompts], SamplingParams(**params), MODEL_LEN)
        scope: dict[str, Any] = {ALLOWANCE: self.allowance}
        ticket = self.admission.take(scope, cost, slack=slack, within=within)
        assert scope[TICKET] is ticket
        return ticket

    @property
    def left(self) -> int:
        assert self.allowance.tokens is not None
        return self.allowance.tokens.remaining

    def refused(self) -> dict[str, float]:
        lines = self.metrics.text().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line.startswith("octavo_requests_refused_total{"))
        return {name.split('reason="')[1][:-2]: float(value) for name, value in pairs if float(value)}


@contextmanager
def refusal(status: int, reason: str, gate: Gate, counted: bool = True) -> Iterator[Any]:
    before = gate.refused().get(reason, 0.0)
    with pytest.raises((RequestRefused, Overloaded)) as told:
        yield told
    assert getattr(told.value, "status", 503) == status
    assert gate.refused().get(reason, 0.0) == before + counted


def test_what_a_request_may_come_to() -> None:
    def cost(prompts: list[int], params: SamplingParams) -> tuple[int, int, bool]:
        found = Cost.of([[1] * count for count in prompts], params, MODEL_LEN)
        assert found.prompts == prompts
        return found.sequences, found.answer, found.bounded

    assert cost([10, 20], SamplingParams(max_tokens=5)) == (2, 10, True)
    assert cost([10, 20], SamplingParams(max_tokens=5, n=3)) == (6, 30, True)
    assert cost([10], SamplingParams(max_tokens=5, best_of=3)) == (3, 15, True)
    assert cost([10], SamplingParams(max_tokens=5, temperature=0, beam_width=4)) == (4, 20, True)
    assert cost([10, 97], SamplingParams(max_tokens=5)) == (2, 8, True)
    assert cost([10], SamplingParams(max_tokens=None)) == (1, 90, False)
    assert cost([10, 20], EMBEDDING) == (2, 0, True)


def test_what_an_answer_did_not_need_is_given_back() -> None:
    gate = Gate(tokens_per_minute=100)
    ticket = gate.take([10], max_tokens=50)
    assert gate.left == 40
    with refusal(429, "key_tokens", gate) as told:
        gate.take([10], max_tokens=50)
    assert told.value.code == "rate_limit_exceeded" and told.value.retry_after_s == 12.0
    for _ in range(7):
        ticket.arrived(0, 1)
    assert gate.left == 40
    ticket.end()
    ticket.end()
    assert gate.left == 100 - 10 - 7
    gate.take([10], max_tokens=50)


def test_a_request_is_refused_until_the_time_that_it_is_told() -> None:
    gate = Gate(tokens_per_minute=60)
    ticket = gate.take([30], max_tokens=30)
    ticket.arrived(0, 30)
    ticket.end()
    with refusal(429, "key_tokens", gate) as told:
        gate.take([20], max_tokens=1)
    gate.now += told.value.retry_after_s
    gate.take([20], max_tokens=1)


def test_an_answer_without_a_bound_takes_what_there_is_and_owes_the_rest() -> None:
    gate = Gate(tokens_per_minute=60)
    ticket = gate.take([10], max_tokens=None)
    assert gate.left == 0
    ticket.arrived(0, 90)
    ticket.end()
    with refusal(429, "key_tokens", gate) as told:
        gate.take([1], max_tokens=1)
    assert told.value.retry_after_s == 42.0


def test_what_can_never_be_taken_is_the_clients_fault() -> None:
    gate = Gate(tokens_per_minute=60)
    for prompt, most, words in ((50, 11, "61 tokens"), (60, None, "61 tokens"), (61, 0, "61 tokens")):
        with pytest.raises(RequestRefused, match=f"{words}.* 60 in a minute") as told:
            gate.take([prompt], max_tokens=most)
        assert (told.value.status, told.value.code) == (400, "request_too_large")
    assert gate.refused() == {}
    gate.take([59], max_tokens=None)


def test_best_of_uses_what_it_computes() -> None:
    gate = Gate(tokens_per_minute=100)
    ticket = gate.take([10], max_tokens=20, best_of=4)
    assert gate.left == 10
    ticket.arrived(0, 5)
    ticket.end()
    assert gate.left == 100 - 10 - 4 * 5


def test_requests_at_once_and_in_a_minute() -> None:
    gate = Gate(max_requests=2, requests_per_minute=3)
    first = gate.take([1])
    gate.take([1])
    with refusal(429, "key_concurrency", gate) as told:
        gate.take([1])
    assert told.value.retry_after_s == 1.0
    first.end()
    gate.take([1]).end()
    with refusal(429, "key_requests", gate) as told:
        gate.take([1])
    assert told.value.retry_after_s == 20.0
    gate.now += 20
    gate.take([1])


def test_a_refusal_takes_nothing() -> None:
    gate = Gate(requests_per_minute=10, tokens_per_minute=100, max_queued_tokens=10)
    gate.take([9], max_tokens=1)
    with refusal(503, "queue_tokens", gate):
        gate.take([9], max_tokens=1)
    assert gate.left == 90 and gate.allowance.open == 1
    assert gate.allowance.requests is not None and gate.allowance.requests.remaining == 9


def test_prompts_wait_until_their_own_answer_begins() -> None:
    gate = Gate(max_queued_tokens=20)
    several = gate.take([5, 15])
    for place, room in ((0, 5), (1, 20)):
        with refusal(503, "queue_tokens", gate):
            gate.take([room + 1]) if room < 20 else gate.take([6])
        several.arrived(place, 1)
    long = gate.take([90])  # nobody waits before it
    with refusal(503, "queue_tokens", gate):
        gate.take([1])
    gate.take([1], within=True, slack=True).end()
    long.end()
    gate.take([20])


def test_lines_of_a_batch_leave_half_to_others() -> None:
    gate = Gate(tokens_per_minute=100, max_requests=1, requests_per_minute=4)
    for _ in range(2):
        gate.take([10], within=True, slack=True, max_tokens=10)
    with refusal(429, "key_requests", gate, counted=False):
        gate.take([1], within=True, slack=True, max_tokens=1)
    gate.take([10], max_tokens=40)  # they do not run in anybody's place
    with refusal(429, "key_concurrency", gate):
        gate.take([1], max_tokens=1)
    gate = Gate(tokens_per_minute=100)
    gate.take([80], within=True, slack=True, max_tokens=10)  # more than half, when all is there
    with refusal(429, "key_tokens", gate, counted=False) as told:
        gate.take([1], within=True, slack=True, max_tokens=0)
    assert told.value.retry_after_s == 60 * (90 + 1 + 50 - 100) / 100


# Over HTTP.


def _turns(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


ROUTES: dict[str, Callable[[str], dict[str, Any]]] = {
    "/v1/completions": lambda text: {"prompt": text, "max_tokens": 2},
    "/v1/chat/completions": lambda text: {"messages": _turns(text), "max_tokens": 2},
    "/v1/responses": lambda text: {"input": text, "max_output_tokens": 2},
    "/v1/messages": lambda text: {"messages": _turns(text), "max_tokens": 2},
    "/api/chat": lambda text: {"model": "tiny", "messages": _turns(text), "options": {"num_predict": 2}},
    "/api/generate": lambda text: {"model": "tiny", "prompt": text, "options": {"num_predict": 2}},
    "/v1/embeddings": lambda text: {"input": text},
    "/api/embed": lambda text: {"model": "tiny", "input": text},
    "/api/embeddings": lambda text: {"model": "tiny", "prompt": text},
}
"""A short answer to a text, which has about a token a character."""


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def ask(server: Server, path: str, key: str, **body: Any) -> httpx2.Response:
    return server.client.post(path, json=body, headers=bearer(key))


@pytest.fixture(scope="module")
def limited(tiny_engine: dict[str, Any]) -> Iterator[Server]:
    """Keys by name of what uses them; each has 450 tokens and 20 requests in a minute, and 2 at once."""
    keys = [f"key-of-{number}" for number in range(20)]
    each = {"max_requests": 2, "requests_per_minute": 20, "tokens_per_minute": 450}
    server = Server(tiny_engine, access={"api_keys": keys, "each_key": each, "metrics_without_key": True})
    yield server
    assert server.stop() == 0


@pytest.mark.parametrize("number", range(len(ROUTES)))
def test_every_route_that_computes_counts(limited: Server, number: int) -> None:
    """One request uses most of the minute; the next is refused in the API's words, streamed or not."""
    path, key = list(ROUTES)[number], f"key-of-{number}"
    limit, remaining = "x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens"
    if path == "/v1/messages":
        limit, remaining = "anthropic-ratelimit-tokens-limit", "anthropic-ratelimit-tokens-remaining"
    body = ROUTES[path]("a" * 380)
    first = ask(limited, path, key, **body)
    assert first.status_code == 200, first.text
    assert first.headers[limit] == "450" and 0 <= int(first.headers[remaining]) < 100
    for more in ({}, {"stream": True}) if "embed" not in path else ({},):
        refused = ask(limited, path, key, **body, **more)
        assert refused.status_code == 429 and refused.headers["content-type"] == "application/json"
        assert 0 < int(refused.headers["retry-after"]) <= 60
        error = refused.json()["error"]
        if path.startswith("/api/"):
            assert "450 tokens a minute" in error
        else:
            assert error["type"] == "rate_limit_error" and "450 tokens a minute" in error["message"]
            assert path == "/v1/messages" or error["code"] == "rate_limit_exceeded"
    never = ask(limited, path, key, **ROUTES[path]("a" * 451))
    assert never.status_code == 400 and "450 in a minute" in never.text


@contextmanager
def standing_engine(server: Server) -> Iterator[None]:
    """Nothing is computed meanwhile: what runs goes on running."""
    engine = engine_pid(server)
    os.kill(engine, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(engine, signal.SIGCONT)


class Meter:
    """What a key has left, and whether that is more than time alone explains."""

    def __init__(self, server: Server, key: str) -> None:
        self._server, self._key = server, key
        self._begun, self._least = time.monotonic(), self.left("tokens")

    def left(self, what: str) -> int:
        headers = self._server.client.get("/v1/models", headers=bearer(self._key)).headers
        return int(headers[f"x-ratelimit-remaining-{what}"])

    def given_back(self) -> bool:
        flowed = 450 * (time.monotonic() - self._begun) / 60
        return self.left("tokens") > self._least + flowed + 100


def test_who_asks_too_much_at_once_is_told_so_and_others_are_not(limited: Server) -> None:
    meter = Meter(limited, "key-of-10")

    def hold(_: int) -> int:
        return ask(limited, "/v1/completions", "key-of-10", prompt="a", max_tokens=5).status_code

    with ThreadPoolExecutor(3) as pool:
        with standing_engine(limited):
            holding = [pool.submit(hold, number) for number in range(2)]
            limited.until(lambda: meter.left("requests") == 18)
            refused = ask(limited, "/v1/completions", "key-of-10", prompt="a", max_tokens=1, stream=True)
            other = pool.submit(ask, limited, "/v1/completions", "key-of-11", prompt="a", max_tokens=1)
        assert [one.result(60) for one in holding] == [200, 200]
        assert other.result(60).status_code == 200
    assert refused.status_code == 429 and "2 requests at once" in refused.json()["error"]["message"]
    assert refused.headers["retry-after"] == "1"
    assert hold(0) == 200


def test_a_client_that_leaves_gives_back_what_it_holds(limited: Server) -> None:
    body = {"prompt": "a", "max_tokens": 430, "ignore_eos": True, "stream": True}
    stream = limited.client.stream("POST", "/v1/completions", json=body, headers=bearer("key-of-12"))
    with stream as reply, standing_engine(limited):
        assert reply.status_code == 200
        meter = Meter(limited, "key-of-12")
        held = ask(limited, "/v1/completions", "key-of-12", prompt="a", max_tokens=200)
        assert held.status_code == 429
        reply.close()
        limited.until(meter.given_back)


def test_a_response_in_the_background_counts_until_its_own_end(limited: Server) -> None:
    key = "key-of-13"
    with standing_engine(limited):
        made = ask(limited, "/v1/responses", key, input="a", background=True, max_output_tokens=400)
        assert made.status_code == 200
        meter = Meter(limited, key)
        assert ask(limited, "/v1/responses", key, input="a", max_output_tokens=200).status_code == 429
        cancelled = ask(limited, f"/v1/responses/{made.json()['id']}/cancel", key)
        assert cancelled.json()["status"] == "cancelled"
        limited.until(meter.given_back)


def test_a_whole_answer_tells_what_is_left_after_it(limited: Server) -> None:
    told = ask(
        limited, "/v1/chat/completions", "key-of-15", messages=_turns("a"), max_tokens=400, stop=["e", " "]
    )
    used = told.json()["usage"]["total_tokens"]
    assert used < 300 and int(told.headers["x-ratelimit-remaining-tokens"]) >= 450 - used


def test_many_at_once_overdraw_nothing(limited: Server) -> None:
    def one(_: int) -> int:
        return ask(limited, "/v1/completions", "key-of-14", prompt="a", max_tokens=220).status_code

    begun = time.monotonic()
    with ThreadPoolExecutor(10) as pool:
        statuses = list(pool.map(one, range(10)))
    flowed = 450 * (time.monotonic() - begun) / 60
    assert set(statuses) <= {200, 429} and statuses.count(200) >= 1
    assert statuses.count(200) <= 10 * (450 + flowed) / 450


@pytest.mark.slow
def test_openais_client_waits_and_comes_back(tiny_engine: dict[str, Any]) -> None:
    access = {"api_keys": ["one"], "each_key": {"tokens_per_minute": 6000}}
    server = Server(tiny_engine, access=access)
    try:
        with server.openai(api_key="one", max_retries=3) as client:
            for _ in range(14):  # 14 × 481 are more than 6,000
                told = client.completions.with_raw_response.create(
                    model="tiny", prompt=[70] * 480, max_tokens=1
                )
                assert told.status_code == 200
    finally:
        assert server.stop() == 0


def test_the_openapi_document_has_429(limited: Server) -> None:
    paths: Mapping[str, Any] = limited.client.get("/openapi.json", headers=bearer("key-of-0")).json()["paths"]
    for path in ROUTES:
        assert "Retry-After" in paths[path]["post"]["responses"]["429"]["headers"]
