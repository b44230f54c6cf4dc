"""What a route does not serve: refused by name on every route that generates or embeds, unless it asks for nothing."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.errors import InvalidParameter
from octavo.protocol import ollama
from octavo.protocol.anthropic import CountTokensRequest, MessagesRequest
from octavo.protocol.body import Body
from octavo.protocol.embeddings import EmbeddingRequest
from octavo.protocol.openai import ChatRequest, CompletionRequest
from octavo.protocol.responses import ResponsesRequest
from octavo.protocol.tokens import DetokenizeRequest, TokenizeRequest

ANSWERING = [
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    MessagesRequest,
    ResponsesRequest,
    ollama.ChatBody,
    ollama.EmbedBody,
    ollama.EmbeddingsBody,
    ollama.GenerateBody,
]


@pytest.mark.parametrize("kind", [*ANSWERING, CountTokensRequest, TokenizeRequest, DetokenizeRequest])
def test_refused_fields_take_only_values_that_ask_for_nothing(kind: type[Body]) -> None:
    own = {*kind.__struct_encode_fields__, *kind.inert}
    for name in kind.refused.keys() - own:
        nothing = kind.refused[name]
        for value in nothing:
            assert kind.check_fields({name: value}) == []
        for value in (7, "x", ["x"], {"x": 1}, *([] if True in nothing else [True])):
            with pytest.raises(InvalidParameter, match=f"^{name} is not supported") as caught:
                kind.check_fields({name: value})
            assert caught.value.param == name


@pytest.mark.parametrize("kind", ANSWERING)
def test_no_field_of_a_chat_or_a_completion_is_unknown_on_another_route(kind: type[Body]) -> None:
    documented = {*ChatRequest.__struct_encode_fields__, *CompletionRequest.__struct_encode_fields__}
    harmless = {"model", "user", "parallel_tool_calls"}
    own = {*kind.__struct_encode_fields__, *kind.inert}
    assert documented - harmless - own <= kind.refused.keys()


@pytest.mark.parametrize(
    ("kind", "raw", "hint"),
    [
        (MessagesRequest, {"n": 2}, "leave it out"),
        (MessagesRequest, {"stop": ["a"]}, "use stop_sequences"),
        (MessagesRequest, {"response_format": {"type": "json_object"}}, "use output_config.format"),
        (EmbeddingRequest, {"stream": True}, "leave it out"),
        (EmbeddingRequest, {"temperature": 5}, "leave it out"),
        (ollama.ChatBody, {"template": "x"}, "leave it out"),
        (ollama.ChatBody, {"temperature": 1}, "use options.temperature"),
        (ollama.ChatBody, {"max_tokens": 4}, "use options.num_predict"),
        (ResponsesRequest, {"max_tokens": 4}, "use max_output_tokens"),
        (ChatRequest, {"max_output_tokens": 4}, "use max_tokens"),
        (ChatRequest, {"system": "Be brief."}, "use a system message"),
    ],
)
def test_what_to_use_instead_is_told(kind: type[Body], raw: dict[str, Any], hint: str) -> None:
    with pytest.raises(InvalidParameter, match=f"on this route; {hint}"):
        kind.check_fields(raw)


def test_a_count_of_tokens_passes_over_what_only_answers_depend_on() -> None:
    assert CountTokensRequest.check_fields({"temperature": 0.5, "foo": 1}) == ["foo", "temperature"]
    assert TokenizeRequest.check_fields({"temperature": 0.5}) == ["temperature"]
    with pytest.raises(InvalidParameter, match="reasoning_effort"):
        TokenizeRequest.check_fields({"reasoning_effort": "high"})


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        ({"input": [{"role": "user", "content": "a", "x": 1}]}, ["input[0].x"]),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a", "x": 1}]}]},
            ["input[0].content[0].x"],
        ),
        (
            {
                "input": [
                    {
                        "type": "function_call",
                        "call_id": "a",
                        "name": "f",
                        "arguments": "{}",
                        "id": "b",
                        "x": 1,
                    },
                    {
                        "type": "function_call_output",
                        "call_id": "a",
                        "output": "",
                        "status": "completed",
                        "y": 1,
                    },
                ]
            },
            ["input[0].x", "input[1].y"],
        ),
        ({"input": [{"type": "reasoning", "summary": [], "content": None, "z": None}]}, []),
        ({"input": ["odd", {"type": 5}, {"type": "image"}], "text": "odd", "tool_choice": "auto"}, []),
        (
            {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"x": 1}, "x": 1}}},
            ["text.format.x"],
        ),
        ({"tool_choice": {"type": "function", "name": "f", "x": 1}}, ["tool_choice.x"]),
    ],
)
def test_unknown_fields_inside_a_response_request(raw: dict[str, Any], found: list[str]) -> None:
    assert ResponsesRequest.check_fields(raw) == found
