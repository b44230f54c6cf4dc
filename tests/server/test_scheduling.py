"""What a client can ask of scheduling and memory, over HTTP: queue, priority, profiles, beams, best_of, the report."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.requests import Request

from octavo.server.running import target_s
from tests.server.conftest import Server
from tests.server.test_admission import standing_engine


@pytest.fixture
def narrow(tiny_engine: dict[str, Any]) -> Iterator[Server]:
    """Two slots, and four may wait."""
    server = Server({**tiny_engine, "max_running": 2}, access={"max_queued_requests": 4})
    yield server
    server.stop()


def test_a_full_queue_answers_503_before_anything_is_streamed(narrow: Server) -> None:
    """Case 9: queue limit 4, 50 at once."""

    def ask(number: int) -> tuple[int, str | None, str]:
        body = {"prompt": "a", "max_tokens": 150, "ignore_eos": True, "stream": True}
        with narrow.client.stream("POST", "/v1/completions", json=body) as reply:
            return reply.status_code, reply.headers.get("retry-after"), reply.read().decode()

    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(ask, range(50)))
    served = [text for status, _, text in answers if status == 200]
    refused = [(after, text) for status, after, text in answers if status == 503]
    assert len(served) + len(refused) == 50 and len(served) >= 6 and len(refused) >= 20
    assert all(text.endswith("data: [DONE]\n\n") for text in served)
    assert all(after and "data:" not in text and '"overloaded' in text for after, text in refused)
    metrics = narrow.client.get("/metrics").text
    assert f'reason="queue_full"}} {float(len(refused))}' in metrics
    narrow.complete(prompt="a", max_tokens=1)


@pytest.mark.parametrize(
    ("access", "reason", "words"),
    [
        ({"max_queued_requests": 1}, "queue_full", "1 sequences wait already"),
        ({"max_queued_tokens": 30}, "queue_tokens", "Prompts of 30 tokens wait already"),
    ],
)
def test_a_full_queue_is_told_in_every_apis_words(
    tiny_engine: dict[str, Any], access: dict[str, int], reason: str, words: str
) -> None:
    """One runs, one waits, and nothing moves: no byte of an answer comes before the refusal, streamed or not."""
    server = Server({**tiny_engine, "max_running": 1}, access=access)
    turns = [{"role": "user", "content": "a"}]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": "a"},
        "/v1/chat/completions": {"messages": turns},
        "/v1/responses": {"input": "a"},
        "/v1/messages": {"messages": turns, "max_tokens": 1},
        "/v1/embeddings": {"input": "a"},
        "/api/chat": {"model": "tiny", "messages": turns},
        "/api/generate": {"model": "tiny", "prompt": "a"},
        "/api/embed": {"model": "tiny", "input": "a"},
    }
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(server.complete, prompt="a", max_tokens=500, ignore_eos=True)
        server.until(lambda: server.metrics()["vllm:num_requests_running"] == 1)
        second = pool.submit(server.complete, prompt=[70] * 30, max_tokens=2)
        server.until(lambda: server.metrics()["vllm:num_requests_waiting"] == 1)
        with standing_engine(server):
            asked = [
                (path, body | more)
                for path, body in bodies.items()
                for more in ({}, {"stream": True})
                if not (more and "embed" in path)
            ]
            for path, body in asked:
                reply = server.post(path, **body)
                assert reply.status_code == (529 if path == "/v1/messages" else 503), (path, reply.text)
                assert reply.headers["retry-after"] == "1" and "data:" not in reply.text
                assert words in str(reply.json()["error"])
            counted = server.metrics()[f'octavo_requests_refused_total{{,reason="{reason}"}}']
            assert counted == len(asked)
        assert first.result(60) and second.result(60)
    assert server.complete(prompt="a", max_tokens=1)
    assert server.stop() == 0


def test_one_request_of_many_sequences_does_not_pass_the_queue(narrow: Server) -> None:
    reply = narrow.post("/v1/completions", prompt=["a"] * 7, max_tokens=1)
    assert reply.status_code == 400 and "7 sequences" in reply.json()["error"]["message"]
    never = narrow.post("/v1/completions", prompt="a", n=3, max_tokens=1)
    assert never.status_code == 400 and never.json()["error"]["param"] == "n"
    narrow.complete(prompt=["a"] * 6, max_tokens=1)


def test_a_search_gives_n_answers_the_best_first(server: Server) -> None:
    asked = {"prompt": "Once", "max_tokens": 8, "use_beam_search": True, "logprobs": 0, "ignore_eos": True}
    answer = server.complete(**asked, n=3)
    sums = [sum(choice["logprobs"]["token_logprobs"]) for choice in answer["choices"]]
    assert len(sums) == 3 and sums == sorted(sums, reverse=True)
    assert len({choice["text"] for choice in answer["choices"]}) == 3
    assert answer["usage"]["completion_tokens"] == 24
    wider = server.complete(**asked, n=1, beam_width=8)
    assert sum(wider["choices"][0]["logprobs"]["token_logprobs"]) >= sums[0]
    chat = server.post(
        "/v1/chat/completions",
        messages=[{"role": "user", "content": "Hi"}],
        use_beam_search=True,
        beam_width=3,
        max_tokens=5,
    )
    assert chat.status_code == 200 and len(chat.json()["choices"]) == 1


def test_best_of_gives_the_best_of_its_attempts(server: Server) -> None:
    asked = {"prompt": "Once", "max_tokens": 6, "seed": 3, "logprobs": 0, "temperature": 1.5}
    [best] = server.complete(**asked, best_of=5)["choices"]
    every = server.complete(**asked, n=5)["choices"]
    means = [sum(c["logprobs"]["token_logprobs"]) / len(c["logprobs"]["tokens"]) for c in every]
    assert best["text"] == every[means.index(max(means))]["text"]


def test_priority_user_and_profile_change_nothing_in_an_answer(server: Server) -> None:
    asked = {"prompt": "Once", "max_tokens": 8, "seed": 3}
    usual = server.complete(**asked)["choices"]
    for own in ({"priority": -5}, {"user": "me"}, {"profile": "voice"}, {"profile": "batch"}):
        assert server.complete(**asked, **own)["choices"] == usual


def test_targets_of_one_request_stand_in_headers(server: Server) -> None:
    body = {"prompt": "Once", "max_tokens": 8, "seed": 3}

    def ask(headers: dict[str, str]) -> Any:
        return server.client.post("/v1/completions", json=body, headers=headers)

    usual = ask({}).json()["choices"]
    for headers in (
        {"x-slo-ttft-ms": "200"},
        {"X-SLO-TBT-MS": "0.5"},
        {"x-slo-ttft-ms": "1", "x-slo-tbt-ms": "50"},
    ):
        answer = ask(headers)
        assert answer.status_code == 200 and answer.json()["choices"] == usual
    for wrong in ("0", "-5", "nan", "inf", "1e", "", "3600001", "٣", "fast"):
        refused = ask({"x-slo-tbt-ms": wrong.encode()})  # type: ignore[dict-item]
        assert refused.status_code == 400, wrong
        error = refused.json()["error"]
        assert error["param"] == "x-slo-tbt-ms" and "milliseconds" in error["message"]


def test_blanks_around_a_header_are_no_part_of_it() -> None:
    """Clients trim them; others may not."""
    request = Request({"type": "http", "headers": [(b"x-slo-ttft-ms", b" 5\t")]})
    assert target_s(request, "x-slo-ttft-ms") == 0.005
    assert target_s(request, "x-slo-tbt-ms") is None


@pytest.fixture
def strict(tiny_engine: dict[str, Any]) -> Iterator[Server]:
    server = Server(tiny_engine, strict=True)
    yield server
    server.stop()


def test_a_strict_server_refuses_what_nobody_knows(strict: Server, server: Server) -> None:
    for path, body in (
        ("/v1/completions", {"prompt": "a", "max_tokens": 1}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}),
        ("/tokenize", {"prompt": "a"}),
    ):
        assert strict.post(path, **body).status_code == 200
        refused = strict.post(path, **body, temprature=0)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "temprature"
        assert server.post(path, **body, temprature=0).status_code == 200
    inside: dict[str, dict[str, Any]] = {
        "messages[0].foo": {"messages": [{"role": "user", "content": "a", "foo": 1}]},
        "messages[0].content[0].x": {
            "messages": [{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}]
        },
        "stream_options.bar": {"stream": True, "stream_options": {"bar": 1}},
    }
    for place, part in inside.items():
        path, asked = (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
        )
        assert strict.post(path, **asked | part).json()["error"]["param"] == place
        assert server.post(path, **asked | part).status_code == 200


def test_the_report_tells_what_memory_was_good_for(server: Server) -> None:
    server.complete(prompt="Once upon a time", max_tokens=30, ignore_eos=True, n=2)
    report = server.client.get("/report").json()
    assert (report["policy"], report["allocator"]) == ("stall-free", "paged")
    assert report["steps"] > 0 and report["most_running"] >= 2
    assert 0 < report["internal_waste"] < 1 and report["external_waste"] == 0
    assert report["now"]["total"] > 0
