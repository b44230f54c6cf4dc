"""Anthropic's requests in OpenAI's words, and its answers: streamed blocks equal whole ones."""

from __future__ import annotations

import itertools
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import EngineDied, InvalidParameter, Overloaded, ServerError
from octavo.protocol.anthropic import CountTokensRequest, MessagesRequest
from octavo.protocol.anthropic_errors import anthropic_error, anthropic_status
from octavo.protocol.anthropic_reply import MessageReply
from octavo.protocol.anthropic_schema import MessageAnswer
from octavo.protocol.body import decode_body
from octavo.protocol.errors import RequestRefused
from octavo.protocol.reply import Choice, Usage
from octavo.text.pieces import Piece

USE = {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "é"}}
TOOL = {"name": "look", "input_schema": {"type": "object"}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "a cat"}]}


def request(*messages: Any, **body: Any) -> CountTokensRequest:
    data = msgspec.json.encode({"messages": messages, **body})
    return decode_body(data, CountTokensRequest)[0]


def told(*messages: Any, **body: Any) -> list[dict[str, Any]]:
    """The conversation, less what is not there."""
    conversation = msgspec.to_builtins(request(*messages, **body).conversation())
    return [{name: value for name, value in one.items() if value is not None} for one in conversation]


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


def assistant(*content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(content)}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


CALL = {"id": "t1", "type": "function", "function": {"name": "look", "arguments": {"at": "é"}}}


def test_uses_of_tools_are_calls_and_results_are_messages() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    conversation = told(
        user(text("Look.")),
        assistant(thought, {"type": "redacted_thinking", "data": "x"}, text("I look."), USE),
        user(RESULT, text("And?")),
        system=[text("Be"), text("brief.")],
    )
    assert conversation == [
        {"role": "system", "content": "Be\nbrief."},
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": "I look.", "tool_calls": [CALL], "reasoning_content": "hm"},
        {"role": "tool", "content": "a cat", "tool_call_id": "t1"},
        {"role": "user", "content": "And?"},
    ]


def test_that_a_tool_failed_is_told() -> None:
    conversation = told(user(text("a")), assistant(USE), user({**RESULT, "is_error": True}))
    assert conversation[-1]["content"] == "Error: a cat"


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([user(RESULT)], "tool_use_id is 't1'"),
        ([user(text("a")), assistant(USE)], "messages[1] uses a tool, and no tool_result"),
        ([user(text("a")), assistant({**USE, "input": None})], "messages[1].content[0].input is missing"),
        ([user({"type": "text"})], "messages[0].content[0].text is missing"),
        ([user(USE)], "of type 'tool_use', which is not read there (user)"),
        ([user({"type": "document", "source": {}})], "no documents"),
        ([{"role": "system", "content": "a"}], "ends with the system's"),
    ],
)
def test_what_makes_no_conversation_is_refused(messages: list[Any], words: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        told(*messages)
    assert words in str(caught.value)


def test_tools_are_openais() -> None:
    tools = [
        {"name": "a", "description": "does a", "input_schema": {"type": "object"}},
        {**TOOL, "name": "b"},
    ]
    choices: list[tuple[Any, int, bool, bool]] = [
        (None, 2, False, True),
        ({"type": "auto"}, 2, False, True),
        ({"type": "any", "disable_parallel_tool_use": True}, 2, True, False),
        ({"type": "none"}, 0, False, True),
        ({"type": "tool", "name": "b"}, 1, True, False),
    ]
    for choice, count, must, several in choices:
        found = request(user(text("a")), tools=tools, tool_choice=choice).called_tools()
        assert found is not None
        assert [function.name for function in found.functions] == ["a", "b"]
        assert (len(found.callable), found.must, found.several) == (count, must, several)
    for bad, words in [
        ({"type": "some"}, "tool_choice.type is 'some'"),
        ({"type": "tool"}, "tool_choice.name is missing"),
        ({"type": "tool", "name": "c"}, "tool_choice.name is 'c'"),
    ]:
        with pytest.raises(InvalidParameter) as caught:
            request(user(text("a")), tools=tools, tool_choice=bad).called_tools()
        assert words in str(caught.value)


def test_a_schema_has_two_places() -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    older = request(user(text("a")), output_format=form)
    newer = request(user(text("a")), output_config={"format": form, "effort": "low"})
    assert older.constraint() == newer.constraint() is not None
    assert (older.constrained_by, newer.constrained_by) == (
        "output_format.schema",
        "output_config.format.schema",
    )
    assert newer.effort() == "low"
    assert request(user(text("a"))).constraint() is None
    for bad in (
        {"output_format": form, "output_config": {"format": form}},
        {"output_format": {"type": "xml"}},
    ):
        with pytest.raises(InvalidParameter):
            request(user(text("a")), **bad).constraint()


@pytest.mark.parametrize(
    ("thinking", "thinks"),
    [
        ({"type": "enabled", "budget_tokens": 2000}, True),
        ({"type": "disabled"}, False),
        ({"type": "adaptive"}, None),
        (None, None),
    ],
)
def test_thinking(thinking: Any, thinks: bool | None) -> None:
    assert request(user(text("a")), thinking=thinking).thinks() is thinks


def test_who_asks_is_the_user_of_the_key() -> None:
    data = {"messages": [user(text("a"))], "max_tokens": 1, "metadata": {"user_id": "u"}}
    assert decode_body(msgspec.json.encode(data), MessagesRequest)[0].service().user == "u"


KINDS: st.SearchStrategy[Literal["text", "reasoning"]] = st.sampled_from(["text", "reasoning"])
PIECES = st.tuples(st.text(min_size=1, max_size=3), KINDS).map(lambda two: Piece(*two))


@st.composite
def answers(draw: st.DrawFn) -> list[Piece]:
    """Pieces as a splitter gives them: a call is named by its first piece, and goes on until another begins."""
    pieces: list[Piece] = []
    for call in range(draw(st.integers(0, 3))):
        pieces += draw(st.lists(PIECES, max_size=4))
        arguments = draw(st.sampled_from(['{"a": "é🙂"}', "{}", '{"cut": "of']))
        cut = draw(st.integers(0, len(arguments)))
        pieces.append(Piece(arguments[:cut], "call", call, f"tool{call}"))
        pieces.append(Piece(arguments[cut:], "call", call))
    return pieces + draw(st.lists(PIECES, max_size=4))


def joined(data: bytes) -> dict[str, Any]:
    """What a client makes of the events."""
    events = [msgspec.json.decode(event.partition(b"data: ")[2]) for event in data.split(b"\n\n") if event]
    message: dict[str, Any] = events[0]["message"]
    assert [events[0]["type"], events[-1]["type"]] == ["message_start", "message_stop"]
    blocks = message["content"]
    json: dict[int, str] = {}
    open_block: int | None = None
    for event in events[1:-1]:
        match event["type"]:
            case "content_block_start":
                assert open_block is None and event["index"] == len(blocks)
                open_block = event["index"]
                blocks.append(event["content_block"])
            case "content_block_delta":
                assert event["index"] == open_block
                delta = event["delta"]
                match delta["type"]:
                    case "input_json_delta":
                        json[len(blocks)] = json.get(len(blocks), "") + delta["partial_json"]
                    case "text_delta":
                        blocks[-1]["text"] += delta["text"]
                    case "thinking_delta":
                        blocks[-1]["thinking"] += delta["thinking"]
            case "content_block_stop":
                assert event["index"] == open_block
                open_block = None
                if said := json.get(len(blocks)):
                    try:
                        blocks[-1]["input"] = msgspec.json.decode(said)
                    except msgspec.DecodeError:
                        blocks[-1]["input"] = {"INVALID_JSON": said}
            case "message_delta":
                message |= event["delta"]
                message["usage"] |= event["usage"]
    assert open_block is None
    return message


@given(answers(), st.booleans(), st.sampled_from(["stop", "length", "tool_calls"]))
def test_streamed_equals_whole(pieces: list[Piece], show: bool, reason: Any) -> None:
    choice = Choice(0, tokens=[1, 2], finish_reason=reason, stop_reason="STOP" if reason == "stop" else None)
    usage = Usage(prompt=5, cached=2, completion=2)
    reply = MessageReply("m", 2, show_thinking=show)
    data = reply.begin(choice, Usage(prompt=5, cached=2))
    for piece in pieces:
        choice.add(piece)
        data += reply.delta(choice, piece, None)
    data += reply.finish(choice) + reply.closing(usage)
    whole = reply.whole([choice], usage)
    msgspec.json.decode(whole, type=MessageAnswer)
    answer, streamed = msgspec.json.decode(whole), joined(data)
    for block in itertools.chain(answer["content"], streamed["content"]):
        assert block.pop("id", "toolu_").startswith("toolu_")
    assert streamed == answer
    assert answer["usage"]["input_tokens"] == 3 and answer["usage"]["cache_read_input_tokens"] == 2
    reasons = {"stop": "stop_sequence", "length": "max_tokens", "tool_calls": "tool_use"}
    assert answer["stop_reason"] == reasons[reason]


def test_an_error_in_a_stream_is_an_event() -> None:
    data = MessageReply("m", 2, request_id="req_1").failure(ServerError("It broke."))
    assert data.startswith(b"event: error\ndata: ")
    assert joined_error(data) == {
        "type": "error",
        "error": {"type": "api_error", "message": "It broke."},
        "request_id": "req_1",
    }


def joined_error(data: bytes) -> Any:
    return msgspec.json.decode(data.partition(b"data: ")[2])


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InvalidParameter("m", "a"), 400, "invalid_request_error"),
        (RequestRefused(401, "m"), 401, "authentication_error"),
        (RequestRefused(404, "m"), 404, "not_found_error"),
        (RequestRefused(413, "m"), 413, "request_too_large"),
        (RequestRefused(429, "m"), 429, "rate_limit_error"),
        (Overloaded("m"), 529, "overloaded_error"),
        (EngineDied("m"), 503, "api_error"),
        (ServerError("m"), 500, "api_error"),
    ],
)
def test_errors(error: Exception, status: int, kind: str) -> None:
    assert anthropic_status(error) == status
    expected = {"type": "error", "error": {"type": kind, "message": "m"}, "request_id": "r"}
    assert anthropic_error(error, "r") == expected
