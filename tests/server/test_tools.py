"""Tools in chat, on the default model: what is forced, how it is told, what is refused."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from octavo.text.calls import HERMES
from tests.server.conftest import Server

USER = {"role": "user", "content": "Hello world"}
NUMBERS = {
    "type": "object",
    "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 99}, "y": {"enum": ["ü", '"']}},
    "required": ["x", "y"],
    "additionalProperties": False,
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "add", "description": "Ädd", "parameters": NUMBERS}},
    {"type": "function", "function": {"name": "now"}},
]


def ask(server: Server, *messages: dict[str, Any], **body: Any) -> dict[str, Any]:
    response = server.post(
        "/v1/chat/completions",
        **{"messages": messages or [USER], "tools": TOOLS, "max_tokens": 300, "seed": 3, **body},
    )
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def calls_of(choice: dict[str, Any]) -> list[tuple[str, Any]]:
    calls = choice["message"].get("tool_calls", [])
    assert all(call["type"] == "function" and call["id"].startswith("call_") for call in calls)
    assert len({call["id"] for call in calls}) == len(calls)
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


@pytest.mark.parametrize("seed", range(6))
def test_required_forces_a_call_that_its_schema_allows(real_server: Server, seed: int) -> None:
    """Case 30, with a model that has never seen a tool."""
    (choice,) = ask(real_server, tool_choice="required", parallel_tool_calls=False, seed=seed)["choices"]
    ((name, arguments),) = calls_of(choice)
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    if name == "add":
        jsonschema.validate(arguments, NUMBERS)
    else:
        assert (name, arguments) == ("now", {})


def test_a_named_function_is_called_and_without_parameters_its_arguments_are_empty(
    real_server: Server,
) -> None:
    choice = ask(real_server, tool_choice={"type": "function", "function": {"name": "now"}})["choices"][0]
    assert calls_of(choice) == [("now", {})]
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_no_tool_is_called_with_none(real_server: Server) -> None:
    with_none = ask(real_server, tool_choice="none", max_tokens=20)
    assert "tool_calls" not in with_none["choices"][0]["message"]
    auto = ask(real_server, tool_choice="auto", max_tokens=20)
    assert (
        with_none["usage"]["prompt_tokens"] == auto["usage"]["prompt_tokens"]
    )  # it is told of them all the same


@pytest.mark.parametrize("n", [1, 3])
def test_streamed_calls_join_to_the_whole(real_server: Server, n: int) -> None:
    """Case 30: streamed pieces join to the unstreamed value."""
    body: dict[str, Any] = {"tools": TOOLS, "tool_choice": "required", "seed": 9, "max_tokens": 90, "n": n}
    whole = ask(real_server, **body)["choices"]
    *events, done = real_server.events("/v1/chat/completions", messages=[USER], **body)
    assert done == "[DONE]"
    for choice in whole:
        parts = [c for event in events for c in event["choices"] if c["index"] == choice["index"]]
        calls: list[dict[str, Any]] = []
        for delta in [call for part in parts for call in part["delta"].get("tool_calls", [])]:
            if "id" in delta:
                assert delta["index"] == len(calls) and delta["type"] == "function"
                calls.append({"name": delta["function"]["name"], "arguments": ""})
            calls[delta["index"]]["arguments"] += delta["function"]["arguments"]
        assert calls == [call["function"] for call in choice["message"].get("tool_calls", [])]
        assert parts[-1]["finish_reason"] == choice["finish_reason"]
        assert "".join(part["delta"].get("content", "") for part in parts) == (
            choice["message"]["content"] or ""
        )


def test_arguments_that_are_cut_off_end_with_length(real_server: Server) -> None:
    choice = ask(
        real_server,
        tool_choice={"type": "function", "function": {"name": "add"}},
        max_tokens=len(HERMES.written[0]),
    )["choices"][0]
    assert choice["finish_reason"] == "length"


def test_a_stop_string_within_a_call_does_not_end_it_as_a_whole_one(real_server: Server) -> None:
    body: dict[str, Any] = {
        "tool_choice": {"type": "function", "function": {"name": "add"}},
        "stop": ['"y"'],
    }
    choice = ask(real_server, **body)["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", '"y"')
    assert choice["message"]["tool_calls"][0]["function"]["arguments"].endswith(", ")
    body["tool_choice"] = {"type": "function", "name": "add"}
    tools: list[dict[str, Any]] = [{"type": "function", **tool["function"]} for tool in TOOLS]
    answer = real_server.post("/v1/responses", input="Hello", **{**body, "tools": tools}).json()
    assert (answer["status"], answer["output"][-1]["status"]) == ("incomplete", "incomplete")
    tools = [{"name": "add", "input_schema": NUMBERS}]
    said = real_server.post(
        "/v1/messages",
        messages=[USER],
        max_tokens=200,
        tools=tools,
        tool_choice={"type": "any"},
        stop_sequences=['"y"'],
    ).json()
    assert (said["stop_reason"], said["stop_sequence"]) == ("stop_sequence", '"y"')


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 12])
def test_a_call_that_is_cut_off_before_its_name_is_no_text(real_server: Server, length: int) -> None:
    choice = ask(real_server, tool_choice="required", max_tokens=length)["choices"][0]
    assert choice["finish_reason"] == "length" and not choice["message"]["content"]


def test_what_was_called_and_came_back_is_part_of_the_conversation(real_server: Server) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"x": 1, "y": "ü"}'}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "2"}
    long = {**result, "content": "2" * 50}
    counts = [
        ask(real_server, USER, said, one, max_tokens=1)["usage"]["prompt_tokens"] for one in (result, long)
    ]
    assert counts[1] > counts[0] + 10
    spelled: list[dict[str, Any]] = [
        {**said, "content": ""},
        {**result, "content": [{"type": "text", "text": "2"}]},
    ]
    assert ask(real_server, USER, *spelled, max_tokens=1)["usage"]["prompt_tokens"] == counts[0]


def test_an_answer_is_json_of_the_schema_or_a_call(real_server: Server) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "null"}}}
    for seed in range(4):
        (choice,) = ask(real_server, response_format=form, seed=seed)["choices"]
        if not calls_of(choice):
            assert choice["message"]["content"] == "null"


def test_tokens_of_a_conversation_with_tools_are_those_that_are_computed(real_server: Server) -> None:
    counted = real_server.post("/tokenize", messages=[USER], tools=TOOLS).json()["count"]
    assert counted == ask(real_server, max_tokens=1)["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
            "properties": {"x": {"type": "nope"}}}}}]}, "tools[0].function.parameters"),
        ({"tool_choice": "required", "tools": None}, "tool_choice"),
        ({"guided_regex": "a+"}, "guided_regex"),
        ({"ignore_eos": True}, "ignore_eos"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f",
            "arguments": "[1"}}]}]}, "messages[1].tool_calls[0].function.arguments"),
        ({"messages": [USER, {"role": "tool", "tool_call_id": "1"}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [
            {"id": "1", "function": {"name": "f"}}]}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].role"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_a_400_that_names_it(real_server: Server, body: dict[str, Any], param: str) -> None:
    """Case 27, for tools."""
    response = real_server.post("/v1/chat/completions", **{"messages": [USER], "tools": TOOLS, **body})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
