"""OpenAI's own Python client against the server: what it parses, and which of its exceptions an error becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionUserMessageParam

from tests.server.conftest import Server

USER: ChatCompletionUserMessageParam = {"role": "user", "content": "Hello world"}
LOOK: Any = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with server.openai(max_retries=0) as client:
        yield client


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "octavo"


def test_completions_with_n_and_logprobs(client: openai.OpenAI) -> None:
    settings: dict[str, Any] = {
        "model": "tiny",
        "prompt": "Hello",
        "max_tokens": 9,
        "seed": 4,
        "n": 2,
        "logprobs": 1,
    }
    whole = client.completions.create(**settings)
    texts, tokens = ["", ""], [list[str](), list[str]()]
    for chunk in client.completions.create(**settings, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            tokens[choice.index] += (choice.logprobs and choice.logprobs.tokens) or []
    assert texts == [choice.text for choice in whole.choices]
    assert tokens == [choice.logprobs and choice.logprobs.tokens for choice in whole.choices]
    assert whole.usage is not None and whole.usage.completion_tokens == sum(map(len, tokens))


def test_the_stream_helper_puts_a_chat_together(client: openai.OpenAI) -> None:
    """It takes an answer that was cut off for a failure, so this one has an end."""
    choice = {"guided_choice": ["Hello world", "the world"]}
    settings: dict[str, Any] = {"model": "tiny", "messages": [USER], "seed": 8, "extra_body": choice}
    scores: dict[str, Any] = {"logprobs": True, "top_logprobs": 2}
    whole = client.chat.completions.create(**settings, **scores)
    with client.chat.completions.stream(**settings, **scores) as stream:
        kinds = {event.type for event in stream}
        joined = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done", "logprobs.content.delta"} <= kinds
    assert joined.choices[0].message.content == whole.choices[0].message.content
    assert whole.choices[0].message.content in choice["guided_choice"]
    assert joined.choices[0].logprobs == whole.choices[0].logprobs
    assert joined.choices[0].finish_reason == whole.choices[0].finish_reason


def test_the_stream_helper_takes_the_ids_and_the_usage_of_each_event(client: openai.OpenAI) -> None:
    """What vLLM has beyond OpenAI stays where the client keeps what it does not know."""
    settings: dict[str, Any] = {"model": "tiny", "messages": [USER], "max_tokens": 12, "seed": 8}
    settings["extra_body"] = {"return_token_ids": True, "guided_choice": ["Hello world", "the world"]}
    whole = client.chat.completions.create(**settings)
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    told: list[int] = []
    counts: list[int] = []
    with client.chat.completions.stream(**settings, stream_options=options) as stream:
        for event in stream:
            if event.type == "chunk" and event.chunk.choices:
                told += getattr(event.chunk.choices[0], "token_ids", [])
                assert event.chunk.usage is not None
                counts.append(event.chunk.usage.completion_tokens)
                assert counts[-1] == len(told)
        joined = stream.get_final_completion()
    assert told == whole.choices[0].model_extra["token_ids"]
    assert joined.choices[0].message.content == whole.choices[0].message.content
    assert joined.usage == whole.usage and counts == sorted(counts)


def test_raw_answers_have_their_headers(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model="tiny", messages=[USER], max_tokens=2)
    assert raw.http_response.status_code == 200
    assert raw.parse().choices[0].message.role == "assistant"


@pytest.mark.parametrize(
    ("ask", "error", "param"),
    [
        (lambda c: c.chat.completions.create(model="nobody", messages=[USER]), openai.NotFoundError, "model"),
        (
            lambda c: c.chat.completions.create(model="tiny", messages=[USER], temperature=9),
            openai.BadRequestError,
            "temperature",
        ),
        (lambda c: c.chat.completions.create(model="tiny", messages=[]), openai.BadRequestError, "messages"),
        (
            lambda c: c.completions.create(model="tiny", prompt="a", max_tokens=2, n=100_000),
            openai.BadRequestError,
            "n",
        ),
        (lambda c: c.models.retrieve("nobody"), openai.NotFoundError, "model"),
    ],
    ids=["model", "bounds", "nothing said", "too many", "no such model"],
)
def test_an_error_is_the_clients_exception(
    client: openai.OpenAI,
    ask: Callable[[openai.OpenAI], object],
    error: type[openai.APIStatusError],
    param: str,
) -> None:
    with pytest.raises(error) as raised:
        ask(client)
    assert raised.value.param == param
    assert raised.value.type == "invalid_request_error"
    assert raised.value.message


def test_keys(tiny_engine: dict[str, Any]) -> None:
    """401 with a wrong key; with the right one, an asynchronous client."""
    server = Server(tiny_engine, access={"api_keys": ["right"]})
    with server.openai(api_key="wrong", max_retries=0) as client, pytest.raises(openai.AuthenticationError):
        client.models.list()
    with server.openai(api_key="right") as client:
        assert [model.id for model in client.models.list()] == ["tiny"]
    assert server.stop() == 0


def test_tools_parse(real_server: Server) -> None:
    """The helper of streams reads calls that come in pieces."""
    with real_server.openai() as client:
        settings: dict[str, Any] = {
            "model": "tiny", "messages": [USER], "tools": [LOOK], "tool_choice": "required", "max_tokens": 60,
            "parallel_tool_calls": False, "seed": 1,
        }  # fmt: skip
        whole = client.chat.completions.create(**settings)
        with client.chat.completions.stream(**settings) as stream:
            joined = stream.get_final_completion()
    for answer in (whole, joined):
        calls = answer.choices[0].message.tool_calls
        assert calls is not None and len(calls) == 1
        assert calls[0].type == "function"
        assert (calls[0].function.name, calls[0].function.arguments) == ("look", "{}")
    assert whole.choices[0].finish_reason == joined.choices[0].finish_reason == "tool_calls"
