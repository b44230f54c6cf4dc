"""/v1/messages, through the real anthropic client and over HTTP."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx2
import jsonschema
import msgspec
import pytest

from octavo.protocol.anthropic_schema import AnthropicErrorReply, MessageAnswer, MessageEvent
from tests.server.conftest import Server

HELLO: list[Any] = [{"role": "user", "content": "Hello world"}]
TEXT = {"type": "text", "text": "Hello world"}
TOOL = {"name": "look", "input_schema": {"type": "object", "properties": {}}}


def client_of(server: Server, key: str = "none") -> anthropic.Anthropic:
    http = httpx2.Client(trust_env=False)
    return anthropic.Anthropic(base_url=server.url, api_key=key, http_client=http, max_retries=0)


@pytest.fixture
def client(server: Server) -> Iterator[anthropic.Anthropic]:
    with client_of(server) as client:
        yield client


def ask(server: Server, messages: Any = HELLO, **body: Any) -> dict[str, Any]:
    """A message that must succeed, and that is what the document says."""
    response = server.post("/v1/messages", messages=messages, **{"max_tokens": 8, "seed": 5, **body})
    assert response.status_code == 200, response.text
    msgspec.json.decode(response.content, type=MessageAnswer)
    answer: dict[str, Any] = response.json()
    return answer


def text_of(answer: dict[str, Any]) -> str:
    return "".join(block["text"] for block in answer["content"])


def tokens(server: Server, messages: Any, **body: Any) -> int:
    """How long the prompt is."""
    response = server.post("/v1/messages/count_tokens", messages=messages, **body)
    assert response.status_code == 200, response.text
    count: int = response.json()["input_tokens"]
    usage = ask(server, messages, **body)["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == count
    return count


def error_of(response: httpx2.Response, status: int) -> tuple[str, str]:
    """Its type and its message."""
    assert response.status_code == status, response.text
    error = msgspec.json.decode(response.content, type=AnthropicErrorReply)
    assert error.request_id == response.headers["request-id"]
    return error.error.type, error.error.message


def test_the_anthropic_client_asks_and_streams(server: Server, client: anthropic.Anthropic) -> None:
    body: dict[str, Any] = {"model": "tiny", "max_tokens": 20, "messages": HELLO, "extra_body": {"seed": 5}}
    whole = client.messages.create(**body)
    assert whole.id.startswith("msg_")
    assert (whole.type, whole.role, whole.model) == ("message", "assistant", "tiny")
    assert whole._request_id is not None and whole._request_id.startswith("req_")
    with client.messages.stream(**body) as stream:
        texts = list(stream.text_stream)
        joined = stream.get_final_message()
    (block,) = whole.content
    assert block.type == "text"
    assert "".join(texts) == block.text
    whole.usage.cache_read_input_tokens = whole.usage.input_tokens = 0  # the second found the first's blocks
    joined.usage.cache_read_input_tokens = joined.usage.input_tokens = 0
    ignored = {"id", "content"}
    assert joined.model_dump(exclude=ignored) == whole.model_dump(exclude=ignored)
    assert joined.content[0].model_dump(exclude={"parsed_output"}) == block.model_dump()
    assert whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 20


def test_the_answer_is_that_of_chat_completions(server: Server) -> None:
    chat = server.post("/v1/chat/completions", messages=HELLO, max_tokens=8, seed=5, temperature=1).json()
    answer = ask(server)
    assert text_of(answer) == chat["choices"][0]["message"]["content"]
    assert answer["usage"]["output_tokens"] == chat["usage"]["completion_tokens"]


def test_its_stream_has_anthropics_events(server: Server) -> None:
    body = {"messages": HELLO, "max_tokens": 8, "seed": 5, "stream": True}
    response = server.post("/v1/messages", **body)
    assert response.headers["content-type"].startswith("text/event-stream")
    events = []
    for event in response.text.removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        events.append(msgspec.json.decode(data.removeprefix("data: ")))
        assert name == f"event: {msgspec.convert(events[-1], MessageEvent).type}"
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    start, end = events[0]["message"], events[-2]
    assert start["content"] == [] and start["stop_reason"] is None
    assert start["usage"]["input_tokens"] == end["usage"]["input_tokens"]
    assert start["usage"]["output_tokens"] == 0 and end["usage"]["output_tokens"] == 8
    assert end["delta"]["stop_reason"] == "max_tokens"


def test_a_stop_sequence_is_told(server: Server) -> None:
    said = text_of(ask(server, max_tokens=20))  # some of it is no character, and no stop string is either
    stop = re.findall("[a-z]{2}", said)[-1]
    answer = ask(server, max_tokens=20, stop_sequences=["never said", stop])
    assert text_of(answer) == said[: said.index(stop)]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", stop)


def test_the_end_of_the_context_is_told_apart(server: Server) -> None:
    assert ask(server, max_tokens=5)["stop_reason"] == "max_tokens"
    answer = ask(server, max_tokens=100_000)
    assert answer["stop_reason"] in ("end_turn", "model_context_window_exceeded")


def test_nothing_is_generated_for_no_tokens(server: Server) -> None:
    """How clients fill the cache."""
    answer = ask(server, max_tokens=0)
    assert answer["content"] == [] and answer["stop_reason"] == "max_tokens"


def test_contents_may_be_blocks(server: Server) -> None:
    plain = tokens(server, HELLO, system="Be brief.")
    marked = {**TEXT, "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    blocks = [{"role": "user", "content": [marked]}]
    assert tokens(server, blocks, system=[{"type": "text", "text": "Be brief."}]) == plain
    assert tokens(server, HELLO) < plain
    system = [{"role": "system", "content": "Be brief."}, *HELLO]
    assert tokens(server, system) == plain


def test_messages_of_one_role_in_a_row_are_one(server: Server) -> None:
    twice = [*HELLO, {"role": "user", "content": [TEXT]}]
    assert tokens(server, twice) == tokens(server, [{"role": "user", "content": [TEXT, TEXT]}])


def test_the_assistants_last_message_is_continued(server: Server) -> None:
    said = text_of(ask(server, max_tokens=12, temperature=0))
    for begun in (said[:5], [{"type": "text", "text": said[:5]}]):
        continued = ask(server, [*HELLO, {"role": "assistant", "content": begun}], temperature=0)
        chat = server.post(
            "/v1/chat/completions",
            messages=[*HELLO, {"role": "assistant", "content": said[:5]}],
            continue_final_message=True,
            add_generation_prompt=False,
            max_tokens=8,
            temperature=0,
        ).json()
        assert text_of(continued) == chat["choices"][0]["message"]["content"]


def test_models_are_listed(client: anthropic.Anthropic) -> None:
    page = client.models.list()
    assert [model.id for model in page] == ["tiny"]
    assert client.models.retrieve("tiny").created_at.year >= 2024


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "messages is missing"),
        ({"messages": HELLO}, "max_tokens is missing"),
        ({"messages": [], "max_tokens": 1}, "messages is an empty list"),
        ({"messages": HELLO, "max_tokens": -1}, "max_tokens is -1"),
        ({"messages": HELLO, "max_tokens": 1, "temperature": 1.5}, "temperature is 1.5"),
        ({"messages": HELLO, "max_tokens": 1, "top_p": 0}, "top_p is 0"),
        (
            {"messages": HELLO, "max_tokens": 1, "stop_sequences": [""]},
            "stop_sequences holds an empty string",
        ),
        ({"messages": HELLO, "max_tokens": 1, "container": "c"}, "container is not supported"),
        ({"messages": HELLO, "max_tokens": 1, "speed": "fast"}, "speed is not supported"),
        ({"messages": HELLO, "max_tokens": 1, "service_tier": "gold"}, "service_tier"),
        (
            {"messages": HELLO, "max_tokens": 2000, "thinking": {"type": "enabled"}},
            "budget_tokens is missing",
        ),
        (
            {
                "messages": HELLO,
                "max_tokens": 1,
                "thinking": {"type": "enabled", "budget_tokens": 2000},
            },
            "it must be less",
        ),
        (
            {
                "messages": HELLO,
                "max_tokens": 1,
                "context_management": {"edits": [{"type": "clear_tool_uses"}]},
            },
            "context_management.edits[0]",
        ),
        ({"messages": [{"role": "tool", "content": "a"}], "max_tokens": 1}, "messages[0].role is 'tool'"),
        ({"messages": [{"role": "user", "content": 3}], "max_tokens": 1}, "messages[0].content must be"),
        ({"messages": [{"role": "user", "content": "a" * 20_000}], "max_tokens": 1}, "messages has 20"),
        (
            {"messages": HELLO, "max_tokens": 1, "tools": [{"name": "a", "type": "web_search_20250305"}]},
            "tools[0]",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}], "max_tokens": 1},
            "reads text, and no images",
        ),
        (
            {
                "messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}],
                "max_tokens": 1,
            },
            "no tool_use before it has this id",
        ),
    ],
)
def test_a_wrong_field_is_named(server: Server, body: dict[str, Any], words: str) -> None:
    kind, message = error_of(server.post("/v1/messages", **body), 400)
    assert kind == "invalid_request_error"
    assert words in message


def test_errors_are_the_clients_classes(server: Server, client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match=r"not_found_error.*'tiny' is"):
        client.messages.create(model="claude-0", max_tokens=1, messages=HELLO)
    with pytest.raises(anthropic.BadRequestError, match="invalid_request_error"):
        client.messages.create(model="tiny", max_tokens=-1, messages=HELLO)
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("claude-0")


def test_keys_may_come_as_anthropics_clients_send_them(tiny_engine: dict[str, Any]) -> None:
    server = Server(
        tiny_engine, access={"api_keys": ["first-key", "second-key"]}, aliases=["claude-one", "claude-two"]
    )
    body: dict[str, Any] = {"max_tokens": 2, "messages": HELLO}
    with client_of(server, "second-key") as client:
        assert client.messages.create(model="claude-two", **body).model == "claude-two"
        assert [model.id for model in client.models.list()] == ["tiny", "claude-one", "claude-two"]
    with client_of(server, "third-key") as client, pytest.raises(anthropic.AuthenticationError):
        client.messages.create(model="claude-two", **body)
    refused = server.post("/v1/messages", **body)
    assert error_of(refused, 401)[0] == "authentication_error"
    headers = {"authorization": "Bearer first-key", "x-api-key": "wrong"}
    assert server.client.post("/v1/messages", json=body, headers=headers).status_code == 200
    with server.openai(api_key="first-key") as other:
        chat = other.chat.completions.create(model="claude-one:latest", messages=HELLO, max_tokens=1)
        assert chat.model == "claude-one:latest"
        assert other.models.retrieve("claude-one").id == "claude-one"
    assert server.stop() == 0


def test_errors_before_any_route_are_anthropics_too(server: Server) -> None:
    assert error_of(server.client.get("/v1/messages"), 405)[0] == "invalid_request_error"
    assert error_of(server.client.post("/v1/messages/batches"), 404)[0] == "not_found_error"
    large = server.client.post("/v1/messages", content=b" " * ((32 << 20) + 1))
    assert error_of(large, 413)[0] == "request_too_large"
    assert error_of(server.client.post("/v1/messages", content=b"{"), 400)[0] == "invalid_request_error"


NUMBERS = {
    "type": "object",
    "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 99}, "y": {"enum": ["ü", '"']}},
    "required": ["x", "y"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"name": "add", "description": "Ädd", "input_schema": NUMBERS},
    {"name": "now", "input_schema": {"type": "object"}},
]


def test_a_forced_tool_is_used_streamed_as_whole(real_server: Server) -> None:
    body: dict[str, Any] = {
        "model": "tiny",
        "max_tokens": 200,
        "messages": HELLO,
        "tools": TOOLS,
        "tool_choice": {"type": "tool", "name": "add"},
        "extra_body": {"seed": 3},
    }
    with client_of(real_server) as client:
        whole = client.messages.create(**body)
        with client.messages.stream(**body) as stream:
            joined = stream.get_final_message()
        (block,), (again,) = whole.content, joined.content
        assert block.type == again.type == "tool_use"
        assert (block.name, block.input) == (again.name, again.input)
        jsonschema.validate(block.input, NUMBERS)
        assert whole.stop_reason == joined.stop_reason == "tool_use"
        result: Any = {"type": "tool_result", "tool_use_id": block.id, "content": "7"}
        body["messages"] = [
            *HELLO,
            {"role": "assistant", "content": whole.content},
            {"role": "user", "content": [result]},
        ]
        body["tool_choice"] = {"type": "none"}
        after = client.messages.create(**body)
        counted = client.messages.count_tokens(
            model="tiny", messages=body["messages"], tools=TOOLS
        ).input_tokens
        usage = after.usage
        assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)
        assert all(block.type == "text" for block in after.content)


def test_an_answer_may_be_held_to_a_schema(real_server: Server) -> None:
    form = {"type": "json_schema", "schema": NUMBERS}
    answer = ask(real_server, max_tokens=100, output_config={"format": form})
    jsonschema.validate(json.loads(text_of(answer)), NUMBERS)
    bad = {"type": "json_schema", "schema": {"type": "nope"}}
    refused = real_server.post("/v1/messages", messages=HELLO, max_tokens=9, output_config={"format": bad})
    assert "output_config.format.schema" in error_of(refused, 400)[1]


def test_fields_of_tools_are_named_as_anthropic_does(real_server: Server) -> None:
    for tool, words in [
        ({"name": "a b", "input_schema": {}}, "tools[0].name is 'a b'"),
        ({"name": "a", "input_schema": {"properties": {"x": {"type": "nope"}}}}, "tools[0].input_schema"),
    ]:
        refused = real_server.post("/v1/messages", messages=HELLO, max_tokens=9, tools=[tool])
        assert words in error_of(refused, 400)[1]


def test_a_model_that_cannot_think_is_not_told_to(real_server: Server) -> None:
    body = {"messages": HELLO, "max_tokens": 1100}
    enabled = {"type": "enabled", "budget_tokens": 1024}
    refused = real_server.post("/v1/messages", **body, thinking=enabled)
    assert "thinking.type asks for reasoning, and this model does not reason" in error_of(refused, 400)[1]
    for left in ("adaptive", "disabled"):
        assert tokens(real_server, HELLO, thinking={"type": left}) == tokens(real_server, HELLO)
