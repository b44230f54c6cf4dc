"""Ids of requests, the line about each, and that nothing of what clients send is in any line."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from octavo.server import errors
from octavo.server.in_process import ask
from octavo.server.request_log import RequestLog
from octavo.telemetry.logs import REQUEST_ID, configure
from tests.processes import engine_of
from tests.server.conftest import Server

SECRET = "MARKERxyzzy"
HELLO = {"prompt": "Hello", "max_tokens": 3, "seed": 1}
KEY = {"authorization": "Bearer k"}


def _lines(log: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.splitlines()]


def _address(server: Server) -> tuple[str, int]:
    url = httpx2.URL(server.url)
    return url.host, url.port or 0


def _access(log: str) -> list[dict[str, Any]]:
    return [line for line in _lines(log) if line["logger"] == "octavo.access"]


def test_an_id_is_the_client_s_or_ours(server: Server) -> None:
    for given, kept in (
        ("mine-1", True),
        ("x" * 128, True),
        ("x" * 129, False),
        ("two words", False),
        ("", False),
        ("é", False),
    ):
        answer = server.client.get("/health", headers={b"x-request-id": given.encode()})
        assert (answer.headers["x-request-id"] == given) is kept
        assert kept or answer.headers["x-request-id"].startswith("req_")
        assert len(answer.headers.get_list("x-request-id")) == 1


def test_every_answer_has_one(server: Server) -> None:
    client, long = server.client, {"x-long": "x" * (70 << 10)}
    stream = {**HELLO, "stream": True}
    messages = {"max_tokens": 2, "messages": [{"role": "user", "content": "Hello"}]}
    answers = [
        client.post("/v1/completions", json=HELLO),
        client.post("/v1/completions", json=stream),
        client.post("/v1/completions", json={}),
        client.post("/v1/completions", content=b"", headers={"content-encoding": "br"}),
        client.get("/nowhere"),
        client.get("/health", headers=long),
        client.get("/docs"),
        client.post("/api/generate", json={"model": "tiny", "prompt": "a", "options": {"num_predict": 1}}),
    ]
    assert len({answer.headers["x-request-id"] for answer in answers}) == len(answers)
    for answer in (client.post("/v1/messages", json=messages), client.post("/v1/messages", json={})):
        assert answer.headers["request-id"] == answer.headers["x-request-id"]
    assert answer.json()["request_id"] == answer.headers["request-id"]


def test_the_openai_client_has_it(server: Server) -> None:
    with server.openai(default_headers={"x-request-id": "trace-7"}) as client:
        assert client.completions.create(model="tiny", prompt="a", max_tokens=1)._request_id == "trace-7"


def test_a_line_for_each_request(tiny_engine: dict[str, Any]) -> None:
    server = Server(tiny_engine, access={"api_keys": ["k"]}, edge={"access_log": True}, log=["json", "info"])
    client = server.client
    client.headers.update(KEY)
    whole = client.post("/v1/completions", json={**HELLO, "prompt": ["Hello", "Hello"], "n": 2}).json()
    server.events("/v1/chat/completions", messages=[{"role": "user", "content": "Hi"}], max_tokens=2)
    client.post("/v1/embeddings", json={"input": "Hello"})
    client.post("/v1/completions", json={**HELLO, "top_p": 5}, headers={"x-request-id": "bad-1"})
    client.get("/health")
    client.get("/metrics")
    client.get("/v1/models", headers={"authorization": "Bearer guess"})
    client.get("/v1/models?after=secret")
    with socket.create_connection(_address(server)) as raw:
        raw.sendall(b"NONSENSE\r\n\r\n")
        refused = raw.recv(1 << 16).decode()
    server.process.send_signal(signal.SIGTERM)
    code, log = server.end()
    assert code == 0
    lines = _access(log)
    shared = {"level": "info", "logger": "octavo.access", "message": "request", "client": "127.0.0.1"}
    for line in lines[:-1]:
        assert shared.items() <= line.items()
        assert line["request_id"] and 0 < line["first_byte_s"] <= line["duration_s"]
    first, chat, embedded, bad, keyless, models, nonsense = lines
    usage = whole["usage"]
    assert first["engine_id"] == whole["id"]
    assert (first["prompt_tokens"], first["output_tokens"]) == (
        usage["prompt_tokens"],
        usage["completion_tokens"],
    )
    assert (first["method"], first["path"], first["status"], first["key"]) == (
        "POST", "/v1/completions", 200, "API key 1",
    )  # fmt: skip
    assert "stream" not in first and set(first["finish"]) <= {"stop", "length"}
    assert chat["stream"] is True and chat["output_tokens"] == 2 and chat["finish"] == ["length"]
    assert embedded["prompt_tokens"] > 0 and embedded["engine_id"].startswith("embd-")
    assert (bad["status"], bad["error"], bad["request_id"]) == (400, "invalid_request_error", "bad-1")
    assert (keyless["status"], keyless["error"]) == (401, "invalid_api_key")
    assert models["path"] == "/v1/models" and "secret" not in log
    assert nonsense["status"] == 400 and nonsense["request_id"] in refused


def test_a_client_that_left_is_seen(tiny_engine: dict[str, Any]) -> None:
    server = Server(tiny_engine, edge={"access_log": True}, log=["json", "info"])
    for stream in (True, False):
        body = json.dumps(
            {"prompt": "Hello", "max_tokens": 500, "ignore_eos": True, "n": 8, "stream": stream}
        )
        head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(_address(server)) as raw:
            raw.sendall((head + body).encode())
            server.until(lambda: server.metrics()["vllm:num_requests_running"] > 0)
        server.until_idle()
    server.process.send_signal(signal.SIGTERM)
    streamed, whole = _access(server.end()[1])
    assert streamed["left"] and whole["left"]
    assert (streamed.get("stream"), whole.get("stream"), whole["status"]) == (True, None, 499)


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What this process logs, as a server would."""
    root, own = logging.getLogger(), logging.getLogger("octavo")
    handlers, level, own_level = root.handlers[:], root.level, own.level
    out, token = io.StringIO(), REQUEST_ID.set("")
    configure("json", "info", out)
    yield out
    REQUEST_ID.reset(token)
    root.handlers[:] = handlers
    root.setLevel(level)
    own.setLevel(own_level)
    logging.captureWarnings(False)


async def test_an_error_that_nobody_expected_has_its_id_and_one_traceback(log: io.StringIO) -> None:
    async def broken(request: Request) -> Response:
        raise ValueError(f"it was {(await request.body()).decode()}")

    app = Starlette(routes=[Route("/broken", broken, methods=["POST"])])
    errors.install(app)
    reply = await ask(RequestLog(app, lines=True), "/broken", SECRET.encode(), identity={}, profile=None)
    assert reply.status == 500
    traced, access = _lines(log.getvalue())
    assert traced["request_id"] == access["request_id"] == reply.headers["x-request-id"]
    assert "builtins.ValueError" in traced["exception"] and "in broken" in traced["exception"]
    assert (access["status"], access["error"]) == (500, "internal_error")
    assert SECRET not in log.getvalue()


async def test_an_error_in_the_middle_of_an_answer_is_not_hidden(log: io.StringIO) -> None:
    async def broken(request: Request) -> Response:
        async def parts() -> Any:
            yield b"some"
            raise ValueError(SECRET)

        return StreamingResponse(parts())

    app = Starlette(routes=[Route("/broken", broken, methods=["POST"])])
    errors.install(app)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    scope = {"type": "http", "method": "POST", "path": "/broken", "headers": [], "query_string": b""}
    with pytest.raises(ValueError, match=SECRET):
        await RequestLog(app, lines=True)(scope, receive, send)
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert len(_access(log.getvalue())) == 1


@pytest.mark.slow
def test_nothing_that_a_client_sends_is_in_the_log(tiny_engine: dict[str, Any], tmp_path: Path) -> None:
    server = Server(
        tiny_engine,
        access={"api_keys": [f"{SECRET}-key", "k"]},
        edge={"access_log": True, "origins": ["https://a.example"]},
        log=["text", "info"],
        data_dir=str(tmp_path / "data"),
    )
    client = server.client
    chat = [{"role": "user", "content": SECRET}]
    tool = {"type": "function", "function": {"name": SECRET, "parameters": {"type": SECRET}}}
    for headers in ({"authorization": f"Bearer {SECRET}-key"}, {"x-api-key": f"{SECRET}-guess"}, KEY):
        headers = {
            **headers,
            "user-agent": SECRET,
            "cookie": SECRET,
            "x-slo-ttft-ms": "1000",
            "origin": SECRET,
        }

        def post(path: str, headers: dict[str, str] = headers, **body: Any) -> None:
            client.post(path, json=body, headers=headers)

        post("/v1/completions", prompt=SECRET, max_tokens=2)
        post("/v1/completions", prompt=SECRET * 10_000, max_tokens=2)
        post("/v1/completions", prompt=[SECRET, 1], max_tokens=2)
        post("/v1/completions", prompt="a", model=SECRET)
        post("/v1/completions", prompt="a", stop=[SECRET], max_tokens=2, logit_bias={SECRET: 1})
        post("/v1/completions", prompt="a", user=SECRET, cache_salt=SECRET, max_tokens=2, profile=SECRET)
        for grammar in (
            {"grammar": f'root ::= "{SECRET}'},
            {"regex": f"({SECRET}"},
            {"json": {"type": SECRET}},
        ):
            post("/v1/completions", prompt="a", structured_outputs=grammar, max_tokens=2)
        post("/v1/completions", prompt="a", structured_outputs={"choice": [SECRET]}, max_tokens=2)
        post("/v1/chat/completions", messages=chat, tools=[tool], max_tokens=2)
        post("/v1/chat/completions", messages=[{"role": SECRET, "content": SECRET}])
        post(
            "/v1/chat/completions",
            messages=chat,
            chat_template_kwargs={"a": SECRET},
            max_tokens=2,
            stream=True,
        )
        post("/v1/messages", messages=chat, max_tokens=2, system=SECRET, metadata={"user_id": SECRET})
        post("/v1/responses", input=SECRET, max_output_tokens=2, previous_response_id=SECRET)
        post("/v1/responses", input=SECRET, max_output_tokens=2, background=True, metadata={"a": SECRET})
        post("/v1/embeddings", input=SECRET, encoding_format=SECRET)
        post("/api/chat", model="tiny", messages=chat, options={"num_predict": 2}, keep_alive=SECRET)
        post("/api/generate", model="tiny", prompt=SECRET, template=SECRET)
        post("/tokenize", prompt=SECRET)
        post("/v1/batches", input_file_id=SECRET, endpoint=SECRET, completion_window=SECRET)
        client.post("/v1/completions", content=f'{{"prompt": "{SECRET}'.encode(), headers=headers)
        client.post("/v1/completions", content=b"\xff" + SECRET.encode(), headers=headers)
        client.get(f"/v1/models?after={SECRET}", headers=headers)
        line = {"custom_id": SECRET, "method": "POST", "url": "/v1/completions"}
        body = {"model": "tiny", "prompt": SECRET, "max_tokens": 2, "top_p": SECRET}
        content = f"{json.dumps({**line, 'body': body})}\n"
        file = client.post(
            "/v1/files",
            files={"file": (f"{SECRET}.jsonl", content.encode())},
            data={"purpose": "batch"},
            headers=headers,
        )
        if file.status_code == 200:
            post(
                "/v1/batches",
                input_file_id=file.json()["id"],
                endpoint="/v1/completions",
                completion_window="24h",
                metadata={"a": SECRET},
            )
    # A death of the engine, with such requests in it.
    client.headers.update(KEY)
    body = {"prompt": SECRET, "max_tokens": 60, "ignore_eos": True, "stream": True, "stop": [SECRET]}
    with client.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        os.kill(engine_of(server.process.pid), signal.SIGKILL)
        assert sum(1 for _ in lines) > 10
    server.until_idle()
    client.close()
    server.process.send_signal(signal.SIGTERM)
    out, err = server.process.communicate(timeout=60)
    assert err.count("octavo.access") >= 75
    assert "the engine process" in err
    assert SECRET not in out + err
