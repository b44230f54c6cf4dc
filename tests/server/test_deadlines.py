"""Times of requests: whose counts, what a client is told, and that nothing of the request is left."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from octavo.server import errors
from octavo.server.deadlines import in_time, set_deadline, take_deadline
from octavo.server.in_process import ask
from tests.server.conftest import Server

HELLO = [{"role": "user", "content": "Hello"}]
LONG: dict[str, Any] = {"max_tokens": 480, "ignore_eos": True}
LINES: dict[str, Any] = {"model": "tiny", "options": {"num_predict": 480, "seed": 1, "temperature": 2}}
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Hello", "n": 8, **LONG},
    "/v1/chat/completions": {"messages": HELLO, "n": 8, **LONG},
    "/v1/messages": {"messages": HELLO, "max_tokens": 480, "temperature": 1, "seed": 6},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 480, "ignore_eos": True},
}
SOON = 0.05
"""Seconds in which the tiny model's 480 tokens cannot come."""


@pytest.fixture(scope="module")
def slow(tiny_engine: dict[str, Any]) -> Iterator[Server]:
    """One slot, so that there is a queue; steps of a token take their time."""
    server = Server({**tiny_engine, "max_running": 8}, edge={"request_timeout_s": 30.0})
    yield server
    assert server.stop() == 0


def _counted(server: Server) -> dict[str, float]:
    name = "octavo_deadlines_exceeded_total"
    return {labels: value for labels, value in server.metrics().items() if labels.startswith(name) and value}


def _waiting(server: Server) -> float:
    return sum(value for labels, value in _counted(server).items() if 'stage="waiting"' in labels)


@pytest.mark.parametrize("path", ROUTES)
def test_an_answer_that_is_late_is_a_504(slow: Server, path: str) -> None:
    before = sum(_counted(slow).values())
    answer = slow.post(path, **ROUTES[path], timeout=SOON)
    assert answer.status_code == 504, answer.text
    told = answer.json()["error"]
    assert told["type"] == "timeout_error" and "0.05 s" in told["message"]
    assert path == "/v1/messages" or told["code"] == "timeout"
    assert answer.headers["x-should-retry"] == "false"
    slow.until_idle()
    assert sum(_counted(slow).values()) == before + 1


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_ollamas_words(slow: Server, path: str) -> None:
    body = {**LINES, "messages": HELLO} if path == "/api/chat" else {**LINES, "prompt": "Hello", "raw": True}
    occupied = slow.client.stream(
        "POST", "/v1/completions", json={"prompt": "a", "n": 8, "stream": True, **LONG}
    )
    with occupied as other:
        lines = other.iter_lines()
        next(lines)
        answer = slow.post(path, **body, stream=False, timeout=SOON)
        assert answer.status_code == 504
        assert list(answer.json()) == ["error"] and "0.05 s" in answer.json()["error"]
    slow.until_idle()


def test_who_waits_for_a_slot_does_not_wait_longer(slow: Server) -> None:
    before = _waiting(slow)
    body = {"prompt": "a", "n": 8, "stream": True, "priority": -1, **LONG}
    with slow.client.stream("POST", "/v1/completions", json=body) as other:
        lines = other.iter_lines()
        next(lines)
        for stream in (False, True):
            late = slow.post("/v1/completions", prompt=["b", "c"], n=2, stream=stream, timeout=SOON)
            assert late.status_code == 504
            assert "before its answer had begun" in late.json()["error"]["message"]
    slow.until_idle()
    assert _waiting(slow) == before + 2


@pytest.mark.parametrize("path", ROUTES)
def test_a_stream_ends_with_an_error_in_its_api_s_words(slow: Server, path: str) -> None:
    body = {**ROUTES[path], "n": 1, "timeout": 0.1, "stream": True}
    if path in ("/v1/messages", "/v1/responses"):
        del body["n"]
    with slow.client.stream("POST", path, json=body) as answer:
        text = answer.read().decode()
    if answer.status_code == 504:  # a machine with much to do
        return
    assert answer.status_code == 200
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    if path == "/v1/responses":
        assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
        assert events[-2]["code"] == "timeout" and events[-1]["response"]["status"] == "failed"
    elif path == "/v1/messages":
        assert events[-1]["type"] == "error" and events[-1]["error"]["type"] == "timeout_error"
    else:
        assert events[-1]["error"]["code"] == "timeout"
        assert text.endswith("data: [DONE]\n\n")
    assert "0.1 s" in text
    assert len(events) > 2
    slow.until_idle()


def test_a_beam_search_is_given_up_whole(slow: Server) -> None:
    body = {
        "prompt": "Hello",
        "use_beam_search": True,
        "beam_width": 8,
        "max_tokens": 300,
        "ignore_eos": True,
    }
    answer = slow.post("/v1/completions", **body, timeout=SOON)
    assert answer.status_code == 504
    slow.until_idle()


def test_clients_raise_and_do_not_try_again(slow: Server) -> None:
    asked = 0

    def count(_: httpx2.Request) -> None:
        nonlocal asked
        asked += 1

    http = httpx2.Client(trust_env=False, event_hooks={"request": [count]})
    with openai.OpenAI(base_url=f"{slow.url}/v1", api_key="none", http_client=http) as client:
        with pytest.raises(openai.InternalServerError, match=r"0\.05 s") as late:
            client.completions.create(
                model="tiny", prompt="a", max_tokens=480, extra_body={"timeout": SOON, "ignore_eos": True}
            )
        assert late.value.status_code == 504 and late.value.code == "timeout"
    http = httpx2.Client(trust_env=False, event_hooks={"request": [count]})
    with anthropic.Anthropic(base_url=slow.url, api_key="none", http_client=http) as other:
        with pytest.raises(anthropic.APIStatusError, match="timeout_error") as late_too:
            other.messages.create(
                model="tiny",
                max_tokens=480,
                messages=[{"role": "user", "content": "Hello"}],
                extra_body={
                    "timeout": SOON,
                    "temperature": 1,
                    "seed": 3,
                },  # one of which the answer has no early end
            )
        assert late_too.value.status_code == 504
    assert asked == 2


def test_time_enough_changes_nothing(slow: Server) -> None:
    body = {"prompt": "Hello", "max_tokens": 8, "seed": 5}
    without = slow.complete(**body)["choices"]
    assert slow.complete(**body, timeout=29.5)["choices"] == without
    assert slow.complete(**body, timeout=86_400)["choices"] == without


@pytest.mark.parametrize("value", [0, -1, 86_401, "5", True])
def test_a_time_that_is_none_is_refused(slow: Server, value: Any) -> None:
    for path, body in (
        *ROUTES.items(),
        ("/api/chat", {**LINES, "messages": HELLO}),
        ("/v1/embeddings", {"input": "a"}),
    ):
        answer = slow.post(path, **body, timeout=value)
        assert answer.status_code == 400
        assert "timeout" in answer.text


def test_a_response_in_the_background_fails(slow: Server) -> None:
    made = slow.post("/v1/responses", **ROUTES["/v1/responses"], background=True, timeout=SOON)
    assert made.status_code == 200

    def now() -> dict[str, Any]:
        found: dict[str, Any] = slow.client.get(f"/v1/responses/{made.json()['id']}").json()
        return found

    slow.until(lambda: now()["status"] not in ("queued", "in_progress"))
    ended = now()
    assert ended["status"] == "failed" and "0.05 s" in ended["error"]["message"]
    slow.until_idle()


def test_the_server_s_own_limit_holds(tiny_engine: dict[str, Any]) -> None:
    server = Server(tiny_engine, edge={"request_timeout_s": SOON})
    late = server.post("/v1/completions", prompt="a", n=8, timeout=60, **LONG)
    assert late.status_code == 504 and "This server's limit" in late.json()["error"]["message"]
    assert next(iter(_counted(server))).startswith('octavo_deadlines_exceeded_total{limit="server"')
    assert server.stop() == 0


@pytest.mark.slow
def test_a_line_of_a_batch_has_its_own_time_but_not_the_server_s(tiny_engine: dict[str, Any]) -> None:
    server = Server(tiny_engine, edge={"request_timeout_s": SOON})
    short, long = (
        {
            "custom_id": name,
            "method": "POST",
            "url": "/v1/completions",
            "body": {"model": "tiny", "prompt": "a", **body},
        }
        for name, body in (("short", {**LONG, "timeout": SOON}), ("long", {**LONG, "max_tokens": 200}))
    )
    content = "\n".join(map(json.dumps, (short, long))).encode()
    file = server.client.post(
        "/v1/files", files={"file": ("a.jsonl", content)}, data={"purpose": "batch"}
    ).json()
    batch = server.post(
        "/v1/batches", input_file_id=file["id"], endpoint="/v1/completions", completion_window="24h"
    ).json()
    path = f"/v1/batches/{batch['id']}"
    server.until(lambda: server.client.get(path).json()["status"] == "completed")
    batch = server.client.get(path).json()
    assert batch["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
    (failed,) = server.client.get(f"/v1/files/{batch['error_file_id']}/content").text.splitlines()
    line = json.loads(failed)
    assert line["custom_id"] == "short" and line["response"]["status_code"] == 504
    assert line["response"]["request_id"].startswith("req_")
    assert server.stop() == 0


async def test_what_waits_before_the_engine_is_given_up_too() -> None:
    counted: list[tuple[str, str]] = []
    serving: Any = SimpleNamespace(
        request_timeout_s=0.01,
        metrics=SimpleNamespace(on_deadline=lambda limit, stage: counted.append((limit, stage))),
    )
    given_up = False

    @in_time
    async def waits(request: Request) -> Response:
        nonlocal given_up
        set_deadline(request, serving, None)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            given_up = True
            raise
        raise AssertionError

    @in_time
    async def goes_on(request: Request) -> Response:
        set_deadline(request, serving, None)
        deadline = take_deadline(request)
        await asyncio.sleep(0.05)
        assert deadline is not None
        return JSONResponse({})

    @in_time
    async def fails(request: Request) -> Response:
        set_deadline(request, serving, 5)
        raise TimeoutError

    app = Starlette(
        routes=[Route(f"/{one.__name__}", one, methods=["POST"]) for one in (waits, goes_on, fails)]
    )
    errors.install(app)
    late = await ask(app, "/waits", b"", identity={}, profile=None)
    assert (late.status, given_up, counted) == (504, True, [("server", "preparing")])
    assert (await ask(app, "/goes_on", b"", identity={}, profile=None)).status == 200
    # Somebody else's TimeoutError is none of ours.
    assert (await ask(app, "/fails", b"", identity={}, profile=None)).status == 500
    assert len(counted) == 1
