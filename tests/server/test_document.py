"""The OpenAPI document: it is valid, it says what routes read, and answers are what it says."""

from __future__ import annotations

import re
from typing import Any

import httpx2
import msgspec
import openapi_spec_validator
import pytest
from starlette.routing import Route

from octavo.protocol.anthropic_schema import AnthropicErrorReply, MessageAnswer, TokenCount
from octavo.protocol.openai_schema import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    Detokenized,
    ModelCard,
    ModelList,
    Tokenized,
)
from octavo.server import openai
from octavo.server.app import health
from octavo.server.auth import KEYLESS
from octavo.server.document import ErrorReply, openapi_document
from tests.server.conftest import Server

CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 6, "seed": 1}
TEXT = {"prompt": "Hello world", "max_tokens": 6, "seed": 1}


@pytest.fixture(scope="module")
def document(server: Server) -> dict[str, Any]:
    document: dict[str, Any] = server.client.get("/openapi.json").json()
    return document


def test_it_is_valid(document: dict[str, Any]) -> None:
    openapi_spec_validator.validate(document)


def test_it_has_the_bodies(server: Server, document: dict[str, Any]) -> None:
    content = document["paths"]["/v1/completions"]["post"]["requestBody"]["content"]
    name = content["application/json"]["schema"]["$ref"].rsplit("/", 1)[1]
    properties = document["components"]["schemas"][name]["properties"]
    assert "min_p" in properties
    assert len(properties["prompt"]["oneOf"]) == 4


def test_the_page_loads_nothing_from_elsewhere(server: Server) -> None:
    page = server.client.get("/docs")
    assert page.status_code == 200
    parts = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(parts) == 3 and "//" not in "".join(parts)
    for part in parts:
        assert len(server.client.get(part).content) > 500
    assert server.client.get("/docs/__init__.py").status_code == 404


def test_with_keys_it_says_where_one_is_wanted() -> None:
    routes = [*openai.ROUTES, Route("/health", health)]
    document = openapi_document(
        routes,
        openai.BODIES,
        openai.OPERATIONS,
        title="t",
        version="1",
        description="d",
        model="tiny",
        keyless=KEYLESS,
    )
    openapi_spec_validator.validate(document)
    asked = document["paths"]["/v1/completions"]["post"]
    assert document["security"] == [{"bearer": []}, {"header": []}]
    assert "security" not in asked and "401" in asked["responses"]
    open_one = document["paths"]["/health"]["get"]
    assert open_one["security"] == [] and "401" not in open_one["responses"]
    model = document["components"]["schemas"]["CompletionRequest"]["properties"]["model"]
    assert model["enum"] == ["tiny", None]


def test_every_operation_says_what_it_answers(document: dict[str, Any]) -> None:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            good = [status for status in operation["responses"] if status.startswith("2")]
            assert good, (path, method)
            assert all(status == "204" or "content" in operation["responses"][status] for status in good), (
                path
            )
            assert operation["description"], path


def test_its_examples_work(server: Server, document: dict[str, Any]) -> None:
    """What "Try it out" on the page sends."""
    tried = 0
    for path, methods in document["paths"].items():
        content = (
            methods.get("post", {}).get("requestBody", {}).get("content", {}).get("application/json", {})
        )
        if "example" in content and "{" not in path:
            response = server.client.post(path, json=content["example"])
            assert response.status_code in (200, 202), (path, response.text)
            tried += 1
    assert tried >= 4


@pytest.mark.parametrize(
    ("method", "path", "body", "kind"),
    [
        ("GET", "/v1/models", None, ModelList),
        ("GET", "/v1/models/tiny", None, ModelCard),
        ("POST", "/tokenize", {"prompt": "Hello"}, Tokenized),
        ("POST", "/tokenize", {"prompt": "Hello", "return_token_strs": True}, Tokenized),
        ("POST", "/detokenize", {"tokens": [1, 2]}, Detokenized),
        ("POST", "/v1/completions", TEXT, Completion),
        ("POST", "/v1/completions", TEXT | {"logprobs": 2, "echo": True, "n": 2}, Completion),
        ("POST", "/v1/completions", TEXT | {"stop_token_ids": list(range(64)), "min_tokens": 1}, Completion),
        ("POST", "/v1/chat/completions", CHAT, ChatCompletion),
        ("POST", "/v1/chat/completions", CHAT | {"logprobs": True, "top_logprobs": 2}, ChatCompletion),
        ("POST", "/v1/messages", CHAT, MessageAnswer),
        ("POST", "/v1/messages/count_tokens", {"messages": CHAT["messages"]}, TokenCount),
        ("POST", "/v1/messages", {}, AnthropicErrorReply),
        ("POST", "/v1/completions", {}, ErrorReply),
        ("GET", "/v1/models/other", None, ErrorReply),
    ],
)
def test_answers_are_what_it_says(server: Server, method: str, path: str, body: Any, kind: Any) -> None:
    response: httpx2.Response = server.client.request(method, path, json=body)
    decoded = msgspec.json.decode(response.content, type=kind)
    assert msgspec.to_builtins(decoded) == response.json()


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/v1/completions", TEXT | {"logprobs": 2, "echo": True, "n": 2}, Completion),
        ("/v1/chat/completions", CHAT | {"logprobs": True, "top_logprobs": 2}, ChatCompletionChunk),
    ],
)
def test_events_are_what_it_says(server: Server, path: str, body: Any, kind: Any) -> None:
    events = server.events(path, **body, stream_options={"include_usage": True})
    for event in events[:-1]:
        assert msgspec.to_builtins(msgspec.convert(event, kind)) == event
