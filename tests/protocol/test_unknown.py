"""Fields inside objects that nobody knows: found wherever they are."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta

from octavo.protocol.anthropic import MessagesRequest
from octavo.protocol.ollama import ChatBody
from octavo.protocol.openai import ChatRequest
from octavo.protocol.unknown import unknown_inside


class Left(msgspec.Struct, tag="left"):
    a: int


class Right(msgspec.Struct, tag="right"):
    b: int


class Whole(msgspec.Struct):
    either: Left | Right | None = None
    many: Annotated[list[Left | Right], Meta(extra_json_schema={"minItems": 1})] = []
    free: dict[str, Any] = {}
    text: str | None = None


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        ({"messages": [{"role": "user", "content": "a"}]}, []),
        ({"messages": [{"role": "user", "content": "a", "foo": 1}]}, ["messages[0].foo"]),
        (
            {"messages": [{"role": "user"}, {"content": [{"type": "text", "x": False}]}]},
            ["messages[1].content[0].x"],
        ),
        ({"messages": [{"role": "assistant", "content": "a", "audio": None, "annotations": []}]}, []),
        ({"stream_options": {"include_usage": True, "bar": 1}}, ["stream_options.bar"]),
        ({"prediction": {"type": "content", "content": "a", "y": "z"}}, ["prediction.y"]),
        ({"chat_template_kwargs": {"anything": {"goes": 1}}, "logit_bias": {"5": 1}}, []),
        ({"unknown": {"a": 1}}, []),
    ],
)
def test_a_chat_request(raw: dict[str, Any], found: list[str]) -> None:
    assert unknown_inside(raw, ChatRequest) == found


def test_what_anthropics_and_ollamas_clients_send_back_is_known() -> None:
    mark = {"type": "ephemeral"}
    blocks: list[dict[str, Any]] = [
        {"type": "thinking", "thinking": "a", "signature": "b"},
        {"type": "redacted_thinking", "data": "c"},
        {"type": "text", "text": "d", "citations": [{"type": "x"}], "cache_control": mark},
        {"type": "tool_use", "id": "e", "name": "f", "input": {"x": 1}, "caller": {"type": "direct"}},
    ]
    raw = {
        "system": [{"type": "text", "text": "a", "cache_control": mark}],
        "messages": [{"role": "assistant", "content": blocks}],
        "tools": [{"name": "f", "input_schema": {"type": "object"}, "cache_control": mark}],
    }
    assert unknown_inside(raw, MessagesRequest) == []
    blocks[0]["foo"] = 1
    assert unknown_inside(raw, MessagesRequest) == ["messages[0].content[0].foo"]
    call = {"function": {"index": 0, "name": "f", "arguments": {"x": 1}}}
    told = {"messages": [{"role": "assistant", "content": "", "tool_calls": [call]}]}
    assert unknown_inside(told, ChatBody) == []


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        ({"either": {"type": "left", "a": 1}}, []),
        ({"either": {"type": "left", "a": 1, "b": 2}}, ["either.b"]),
        ({"many": [{"type": "right", "b": 1}, {"type": "right", "b": 1, "c": 2}]}, ["many[1].c"]),
        ({"free": {"a": {"b": 1}}, "text": "x", "either": None}, []),
    ],
)
def test_of_a_union_only_the_one_that_is_meant(raw: dict[str, Any], found: list[str]) -> None:
    assert unknown_inside(raw, Whole) == found
