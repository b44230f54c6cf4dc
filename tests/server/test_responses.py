"""/v1/responses: the answer and its events, through the real openai client and over HTTP."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from octavo.protocol.response_schema import ItemList, ResponseObject
from tests.server.conftest import Server

EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
OPTIONAL = {
    "access_programs", "image", "input_transformations", "moderation", "prompt_cache_diagnostics",
    "prompt_cache_options", "prompt_cache_retention", "tool_usage",
}  # fmt: skip
"""Fields of OpenAI's for what is not there."""
VARYING = {"id", "created_at", "completed_at", "item_id", "call_id"}


def respond(server: Server, **body: Any) -> dict[str, Any]:
    """A response that must succeed."""
    answer = server.post("/v1/responses", **{"max_output_tokens": 12, "seed": 5, **body})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    Response.model_validate(found)
    msgspec.convert(found, ResponseObject)
    return found


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a stream, each in OpenAI's form and numbered from the first one's number on."""
    events = []
    for event in text.removesuffix("\n\n").split("\n\n"):
        kind, data = event.split("\n")
        events.append(msgspec.json.decode(data.removeprefix("data: ")))
        assert kind == f"event: {events[-1]['type']}"
        EVENTS.validate_python(events[-1])
    first = events[0]["sequence_number"]
    assert [event["sequence_number"] for event in events] == list(range(first, first + len(events)))
    return events


def streamed(server: Server, **body: Any) -> list[dict[str, Any]]:
    body = {"max_output_tokens": 12, "seed": 5, **body, "stream": True}
    with server.client.stream("POST", "/v1/responses", json=body) as response:
        text = response.read().decode()
        assert response.status_code == 200, text
        assert response.headers["content-type"].startswith("text/event-stream")
    events = events_of(text)
    assert events[0]["sequence_number"] == 0
    return events


def lasting(value: Any) -> Any:
    """Without ids and times."""
    if isinstance(value, dict):
        return {name: lasting(one) for name, one in value.items() if name not in VARYING}
    return [lasting(one) for one in value] if isinstance(value, list) else value


def refused(server: Server, status: int = 400, **body: Any) -> dict[str, Any]:
    answer = server.post("/v1/responses", **{"input": "Hello", "max_output_tokens": 4, **body})
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error


def test_an_answer_has_every_field_that_openai_has(server: Server) -> None:
    answer = respond(server, input="Hello world", metadata={"for": "a test"}, user="somebody")
    assert Response.model_fields.keys() - OPTIONAL <= answer.keys()
    assert answer["object"] == "response"
    assert answer["metadata"] == {"for": "a test"}
    assert (answer["store"], answer["background"], answer["truncation"]) == (True, False, "disabled")
    [message] = answer["output"]
    assert message["id"].startswith("msg_")
    assert message["content"][0]["type"] == "output_text"
    usage = answer["usage"]
    assert usage["output_tokens"] <= 12
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    if answer["status"] == "incomplete":
        assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
        assert answer["completed_at"] is None


def test_it_says_what_a_chat_says(server: Server) -> None:
    for given in (
        "Hello world",
        [{"role": "user", "content": "Hello world"}],
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello world"}]}],
    ):
        answer = respond(server, input=given, instructions="Be brief")
        messages = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hello world"}]
        chat = server.post("/v1/chat/completions", messages=messages, max_tokens=12, seed=5).json()
        assert answer["output"][0]["content"][0]["text"] == chat["choices"][0]["message"]["content"]
        assert answer["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"max_output_tokens": 1},
        {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
        {"stop": ["e", "a"]},
    ],
)
def test_streamed_equals_whole(server: Server, body: dict[str, Any]) -> None:
    whole = respond(server, input="Hello world", **body)
    events = streamed(server, input="Hello world", **body)
    last = events[-1]
    assert last["type"] == f"response.{whole['status']}"
    found = {**last["response"], "usage": {**last["response"]["usage"], "input_tokens_details": None}}
    assert lasting(found) == lasting({**whole, "usage": {**whole["usage"], "input_tokens_details": None}})
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    [part] = whole["output"][0]["content"]
    assert "".join(event["delta"] for event in deltas) == part["text"]
    told = [one for event in deltas for one in event["logprobs"]]
    assert told == part["logprobs"][: len(told)]
    assert len(part["logprobs"]) == (whole["usage"]["output_tokens"] if "include" in body else 0)


def test_the_events_of_a_stream(server: Server) -> None:
    kinds = [event["type"].removeprefix("response.") for event in streamed(server, input="Hello world")]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    assert kinds[-4:-1] == ["output_text.done", "content_part.done", "output_item.done"]


def test_deltas_can_be_filled_up(server: Server) -> None:
    events = streamed(server, input="Hello world", stream_options={"include_obfuscation": True})
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    sizes = {len(msgspec.json.encode(event["delta"])) + len(event["obfuscation"]) for event in deltas}
    assert all(size % 32 == 0 for size in sizes)


def test_the_openai_client_creates_streams_retrieves_and_deletes(server: Server) -> None:
    with server.openai() as client:
        made = client.responses.create(model="tiny", input="Hello world", max_output_tokens=12)
        assert client.responses.retrieve(made.id) == made
        ends = {"stop": list("abcdefghijklmnopqrstuvwxyz "), "seed": 5}  # the helper knows no other end
        with client.responses.stream(model="tiny", input="Hello world", extra_body=ends) as stream:
            text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
            final = stream.get_final_response()
        assert final.output_text == text
        assert client.responses.retrieve(final.id).output_text == text
        [item] = [item.to_dict() for item in client.responses.input_items.list(made.id)]
        assert item["role"] == "user"
        assert item["content"] == [{"type": "input_text", "text": "Hello world"}]
        count = client.responses.input_tokens.count(model="tiny", input="Hello world")
        assert made.usage is not None
        assert count.input_tokens == made.usage.input_tokens
        client.responses.delete(made.id)
    assert server.client.get(f"/v1/responses/{made.id}").status_code == 404
    assert server.client.delete(f"/v1/responses/{made.id}").status_code == 404


def test_what_is_not_to_be_stored_is_not_there(server: Server) -> None:
    answer = respond(server, input="Hello", store=False)
    assert answer["store"] is False
    assert server.client.get(f"/v1/responses/{answer['id']}").status_code == 404
    assert refused(server, previous_response_id=answer["id"])["code"] == "previous_response_not_found"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": None}, "input"),
        ({"input": [{"role": "king", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"truncation": "auto"}, "truncation"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"background": True, "store": False}, "background"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options"),
        ({"include": ["everything"]}, "include[0]"),
        ({"max_output_tokens": -1}, "max_output_tokens"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"max_tool_calls": 0}, "max_tool_calls"),
        ({"guided_json": {"type": "object"}}, "guided_json"),
        ({"n": 2}, "n"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"logits_processors": ["x"]}, "logits_processors"),
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "no"}}}},
            "text.format.schema",
        ),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"metadata": {"a": "b" * 513}}, "metadata"),
        ({"metadata": {"a": 5}}, "metadata[a]"),
        ({"top_p": 2}, "top_p"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        ({"top_logprobs": 1000}, "top_logprobs"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ],
)
def test_what_cannot_be_is_refused_by_name(server: Server, body: dict[str, Any], param: str) -> None:
    error = refused(server, **body)
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


def test_input_items_come_in_pages(server: Server) -> None:
    texts = [f"turn {i}" for i in range(5)]
    answer = respond(
        server,
        input=[{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)],
    )
    path = f"/v1/responses/{answer['id']}/input_items"
    first = server.client.get(path, params={"limit": 2}).json()
    msgspec.convert(first, ItemList)
    assert [item["content"][0]["text"] for item in first["data"]] == ["turn 4", "turn 3"]
    assert first["has_more"] is True
    rest = server.client.get(path, params={"after": first["last_id"]}).json()
    assert [item["content"][0]["text"] for item in rest["data"]] == ["turn 2", "turn 1", "turn 0"]
    assert rest["has_more"] is False
    up = server.client.get(path, params={"order": "asc"}).json()["data"]
    assert [item["id"] for item in up] == [item["id"] for item in [*first["data"], *rest["data"]][::-1]]
    assert server.client.get(path, params={"after": "msg_x"}).status_code == 400
    assert server.client.get(path, params={"limit": 0}).status_code == 400


def test_an_answer_follows_a_schema(server: Server) -> None:
    schema = {
        "type": "object",
        "properties": {"x": {"enum": [1, 2]}},
        "required": ["x"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "name": "one", "schema": schema}
    answer = respond(server, input="Hello", text={"format": form}, max_output_tokens=60)
    assert answer["text"]["format"] == form
    assert msgspec.json.decode(answer["output"][0]["content"][0]["text"])["x"] in (1, 2)


def test_a_call_and_its_output(real_server: Server) -> None:
    """Through the openai client, over two turns that go on from token ids."""
    common: Any = {"model": "tiny", "max_output_tokens": 90, "extra_body": {"seed": 3}}
    tool: Any = {
        "type": "function",
        "name": "add",
        "strict": True,
        "parameters": {"type": "object", "properties": {}},
    }
    choice: Any = {"type": "function", "name": "add"}
    with real_server.openai() as client:
        made = client.responses.create(input="Hello", tools=[tool], tool_choice=choice, **common)
        assert made.tools[0].to_dict() == {**tool, "description": None}
        [call] = made.output
        assert call.type == "function_call" and call.name == "add" and call.status == "completed"
        output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "5"}
        after = client.responses.create(
            previous_response_id=made.id, input=[output], tools=[tool], tool_choice="none", **common
        )
        items = [item.type for item in client.responses.input_items.list(after.id, order="asc")]
    assert items == ["message", "function_call", "function_call_output"]
    assert made.usage is not None and after.usage is not None
    read = made.usage.total_tokens - 1
    assert after.usage.input_tokens_details.cached_tokens >= (read - 1) // 16 * 16


def test_an_item_can_be_referred_to(server: Server) -> None:
    first = respond(server, input="Hello world")
    message = first["output"][0]
    referred = respond(
        server, input=[{"type": "item_reference", "id": message["id"]}, {"role": "user", "content": "On"}]
    )
    given = respond(server, input=[message, {"role": "user", "content": "On"}])
    assert lasting(referred["output"]) == lasting(given["output"])
    missing = [{"type": "item_reference", "id": "msg_none"}]
    assert refused(server, 404, input=missing)["param"] == "input[0].id"
