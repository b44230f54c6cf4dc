"""What a client does wrong: always OpenAI's error object, never a 500, and the server goes on."""

from __future__ import annotations

import gzip
import socket
import time
from typing import Any

import httpx2
import pytest

from octavo.server import limits
from tests.server.conftest import Server


def error_of(response: httpx2.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    return error


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, "prompt", "is missing"),
        ({"prompt": ""}, "prompt", "is empty"),
        ({"prompt": []}, "prompt", "empty list"),
        ({"prompt": [""]}, "prompt[0]", "is empty"),
        ({"prompt": [[]]}, "prompt[0]", "not like the others"),
        ({"prompt": ["a", 3]}, "prompt[1]", "not like the others"),
        ({"prompt": [1, "a"]}, "prompt[0]", "not like the others"),
        ({"prompt": [True]}, "prompt[0]", "not like the others"),
        ({"prompt": ["a"] * 2000}, "prompt", "at most 1024"),
        ({"prompt": ["a"] * 1000, "n": 100}, "n", "at most 4096"),
        ({"prompt": 3}, "prompt", "must be a string or a list, not 3"),
        ({"prompt": [99999]}, "prompt", "outside the vocabulary"),
        ({"prompt": [-1]}, "prompt", "prompt[0] is -1, which is outside the vocabulary"),
        ({"prompt": [[1], [5, 99999]]}, "prompt[1]", "prompt[1][1] is 99999"),
        ({"prompt": ["a", "a" * 2000], "max_tokens": 1}, "prompt", "prompt[1] has"),
        ({"prompt": "a", "tools": [{"type": "function"}]}, "tools", "not supported"),
        ({"prompt": "a", "tool_choice": "required"}, "tool_choice", "not supported"),
        ({"prompt": "a", "max_completion_tokens": 5}, "max_completion_tokens", "use max_tokens"),
        ({"prompt": "a", "messages": [{"role": "user"}]}, "messages", "not supported"),
        ({"prompt": "a", "grammar": "root ::= x"}, "grammar", "not found"),
        ({"prompt": "a", "max_tokens": "5"}, "max_tokens", 'must be an integer, not "5"'),
        ({"prompt": "a", "max_tokens": True}, "max_tokens", "not true"),
        ({"prompt": "a", "max_tokens": 5.5}, "max_tokens", "not 5.5"),
        ({"prompt": "a", "max_tokens": -1}, "max_tokens", "-1"),
        ({"prompt": "a", "temperature": "hot"}, "temperature", 'not "hot"'),
        ({"prompt": "a", "temperature": -1}, "temperature", "-1"),
        ({"prompt": "a", "top_p": 0}, "top_p", "above 0"),
        ({"prompt": "a", "n": 0}, "n", "1 …"),
        ({"prompt": "a", "n": 100_000}, "n", "100000"),
        ({"prompt": "a", "logprobs": 100_000}, "logprobs", "100000"),
        ({"prompt": "a", "stop": ""}, "stop", "empty string"),
        ({"prompt": "a", "stop": ["b", 3]}, "stop[1]", "must be a string, not 3"),
        ({"prompt": "a", "stop": ["b"] * 100_000}, "stop", "100000 strings"),
        ({"prompt": "a", "seed": 2**63}, "seed", str(2**63)),
        ({"prompt": "a", "seed": 10**30}, "seed", "lie in"),
        ({"prompt": "a", "logit_bias": {"word": 1}}, "logit_bias", "'word'"),
        ({"prompt": "a", "logit_bias": {"99999": 1}}, "logit_bias", "99999"),
        ({"prompt": "a", "logit_bias": {"5": 101}}, "logit_bias[5]", "101"),
        ({"prompt": "a", "logit_bias": {"4": 1, "5": "x"}}, "logit_bias[5]", 'must be a number, not "x"'),
        ({"prompt": "a", "logit_bias": {"5": None}}, "logit_bias[5]", "not null"),
        ({"prompt": "a", "logit_bias": {"9999999999": 1}}, "logit_bias", "key 9999999999"),
        ({"prompt": "a", "min_tokens": 20}, "min_tokens", "larger than max_tokens"),
        ({"prompt": "a", "n": 2, "best_of": 1}, "best_of", "best_of is 1"),
        ({"prompt": "a", "best_of": 3, "stream": True}, "stream", "best_of with stream"),
        (
            {"prompt": "a", "use_beam_search": True, "n": 2, "temperature": 1},
            "temperature",
            "temperature is 1",
        ),
        ({"prompt": "a", "length_penalty": 2}, "length_penalty", "use_beam_search"),
        ({"prompt": "a", "profile": "fast"}, "profile", "fast"),
        ({"prompt": "a", "priority": 10**9}, "priority", "1000000"),
        ({"prompt": "a", "suffix": "b"}, "suffix", "not supported by"),
        ({"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options", "stream is not true"),
        ({"prompt": "a", "stream_options": {"include_usage": 1}}, "stream_options.include_usage", "not 1"),
        ({"prompt": "a", "guided_regex": "["}, "guided_regex", "unclosed"),
    ],
)
def test_a_wrong_field_is_named(server: Server, body: dict[str, Any], param: str, words: str) -> None:
    """Cases 8 (parameters as weapons), 15, 20, 23, 24, 32 (nothing to continue) and 33 among them."""
    error = error_of(server.post("/v1/completions", **body), 400)
    assert error["param"] == param
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b'"a"',
        b"null",
        b"\xff\xfe",
        b'{"prompt": NaN}',
        b'{"prompt": "\\ud800"}',
        b"[" * 5000 + b"]" * 5000,
        b'{"prompt":' + b"[" * 100 + b"]" * 100 + b"}",
    ],
)
def test_what_is_no_request_is_a_400(server: Server, body: bytes) -> None:
    """Case 33: malformed JSON."""
    for path in ("/v1/completions", "/v1/chat/completions"):
        error_of(server.client.post(path, content=body), 400)


def test_neutral_values_of_what_is_not_supported_are_taken(server: Server) -> None:
    server.complete(
        prompt="a", max_tokens=1, suffix=None, best_of=1, user="me", use_beam_search=False, made_up=1
    )
    response = server.post(
        "/v1/chat/completions",
        messages=[{"role": "user", "content": "a"}],
        max_tokens=1,
        tools=[],
        tool_choice="none",
        response_format={"type": "text"},
        parallel_tool_calls=True,
        store=False,
    )
    assert response.status_code == 200


def test_no_such_model_names_the_one_there_is(server: Server) -> None:
    """Case 33."""
    error = error_of(server.post("/v1/completions", model="gpt-5", prompt="a"), 404)
    assert error["code"] == "model_not_found"
    assert "'tiny'" in error["message"]
    assert server.client.get("/v1/models").json()["data"][0]["id"] == "tiny"
    assert server.client.get("/v1/models/tiny").json()["max_model_len"] == 512
    error_of(server.client.get("/v1/models/gpt-5"), 404)


def test_unknown_routes_and_methods(server: Server) -> None:
    """Case 33: 404 and 405."""
    assert "/v1/nothing" in error_of(server.client.get("/v1/nothing"), 404)["message"]
    error_of(server.client.post("/v1/completions/", json={"prompt": "a"}), 404)
    error_of(server.client.get("/health/"), 404)
    refused = server.client.get("/v1/completions")
    assert "GET" in error_of(refused, 405)["message"]
    assert refused.headers["allow"] == "POST"
    assert server.client.put("/v1/files").headers["allow"] == "GET, HEAD, POST"


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_too_large_is_a_413(server: Server, chunked: bool) -> None:
    """Cases 8 and 33."""
    piece = b" " * (1 << 20)
    count = limits.MAX_BODY_BYTES // len(piece) + 1
    content: Any = (piece for _ in range(count)) if chunked else piece * count
    error_of(server.client.post("/v1/completions", content=content), 413)
    server.complete(prompt="a", max_tokens=1)


def test_a_body_in_another_encoding_is_a_415(server: Server) -> None:
    packed = gzip.compress(b'{"prompt": "a"}')
    for path in ("/v1/completions", "/v1/messages", "/api/chat"):
        refused = server.client.post(path, content=packed, headers={"content-encoding": "gzip"})
        assert refused.status_code == 415
        assert "content-encoding is 'gzip'" in refused.text and "identity" in refused.text
    plain = {"prompt": "a", "max_tokens": 1}
    assert server.client.post(
        "/v1/completions", json=plain, headers={"content-encoding": "identity"}
    ).is_success


@pytest.mark.parametrize(
    ("path", "field"),
    [("/v1/completions", "prompt"), ("/v1/chat/completions", "messages"), ("/v1/responses", "input")],
)
def test_a_prompt_that_is_too_long_is_named_as_the_route_has_it(
    server: Server, path: str, field: str
) -> None:
    text = "a b " * 1500
    given: Any = [{"role": "user", "content": text}] if field == "messages" else text
    error = error_of(server.post(path, **{field: given}), 400)
    assert (error["param"], error["code"]) == (field, "context_length_exceeded")
    assert "tokens" in error["message"]


def test_a_text_that_can_never_fit_is_refused_before_it_is_tokenized(server: Server) -> None:
    error = error_of(server.post("/v1/completions", prompt="a" * 10_000_000), 400)
    assert error["code"] == "context_length_exceeded"
    assert "10000000 characters" in error["message"]


def raw(server: Server) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    connection.settimeout(10)
    return connection


def read_all(connection: socket.socket) -> bytes:
    received = b""
    while data := connection.recv(1 << 16):
        received += data
    return received


def test_a_head_too_large_is_a_431(server: Server) -> None:
    with raw(server) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: a\r\nx: " + b"a" * (limits.MAX_HEAD_BYTES + 1))
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 431 ")
    server.complete(prompt="a", max_tokens=1)


def test_a_large_body_beside_its_head_is_no_large_head(server: Server) -> None:
    body = b'{"prompt": "a", "max_tokens": 1, "x": "' + b"a" * 2 * limits.MAX_HEAD_BYTES + b'"}'
    with raw(server) as connection:
        head = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        connection.sendall(head % len(body) + body)
        assert read_all(connection).startswith(b"HTTP/1.1 200 ")


def test_what_is_not_http_is_a_400(server: Server) -> None:
    with raw(server) as connection:
        connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")
        received = connection.recv(1 << 16)
    assert received.startswith(b"HTTP/1.1 400 ")
    assert b'{"error":{"message":' in received


def test_connections_that_say_nothing_cost_no_one_anything(server: Server) -> None:
    silent = [raw(server) for _ in range(200)]
    started = time.monotonic()
    server.complete(prompt="a", max_tokens=3)
    assert time.monotonic() - started < limits.HEAD_S
    for connection in silent:
        connection.close()
