"""What a chunk of any known server says: its kind, its characters, its tokens; and what is no chunk is told."""

from __future__ import annotations

import json
import re
import tracemalloc
from typing import Any

import pytest

from octavo.bench.record import Chunk, Kind
from octavo.bench.stream import AnswerReader, Keep, error_message
from tests.bench.scripted import chat_event, completion_event, event, usage, usage_event


def read(*events: bytes, keep: Keep = None) -> AnswerReader:
    """Each at its own millisecond."""
    reader = AnswerReader(keep)
    for number, one in enumerate(events):
        reader.read(one.removeprefix(b"data: ").removesuffix(b"\n\n"), number * 1000)
    reader.close()
    return reader


def kinds(reader: AnswerReader) -> list[Kind]:
    return [Kind(one.kind) for one in reader.chunks()[0]]


def test_a_chat_from_its_role_to_its_end() -> None:
    reader = read(
        chat_event("", role="assistant"),
        chat_event("Hello", usage=None),
        chat_event(" all."),
        chat_event(finish="stop"),
        usage_event(7, 3, cached=4, reasoning=1),
        b"data: [DONE]\n\n",
    )
    chunks, counted, total = reader.chunks()
    assert chunks == [
        Chunk(0, 0, 0, Kind.ROLE),
        Chunk(1000, 1, 5, Kind.ANSWER),
        Chunk(2000, 1, 5, Kind.ANSWER | Kind.SENTENCE),
        Chunk(3000, 1, 0, Kind.FINISH),
        Chunk(4000, 0, 0, Kind.USAGE),
        Chunk(5000, 0, 0, Kind.DONE),
    ]
    assert (counted, total) == ("chunks", 3)
    assert (reader.input_tokens, reader.cached_tokens, reader.reasoning_tokens) == (7, 4, 1)
    assert (reader.finish_reason, reader.done_us, reader.first_text_us, reader.id) == (
        "stop",
        5000,
        1000,
        "chat-1",
    )
    assert reader.error is None


def test_a_completion_with_token_ids_and_a_kept_answer() -> None:
    events = (
        completion_event(" one two", token_ids=[5, 6]),
        completion_event("", token_ids=[7]),
        completion_event("…", token_ids=[8], finish="length"),
        usage_event(2, 4),
    )
    reader = read(*events, keep="ids")
    chunks, counted, total = reader.chunks()
    assert [one.tokens for one in chunks] == [2, 1, 1, 0]
    assert [one.kind for one in chunks] == [
        Kind.ANSWER,
        Kind.EMPTY,
        Kind.ANSWER | Kind.FINISH | Kind.SENTENCE,
        Kind.USAGE,
    ]
    assert (counted, total, list(reader.token_ids), reader.text) == ("ids", 4, [5, 6, 7, 8], "")
    assert read(*events, keep="text").text == " one two…"


def test_usage_in_every_event_counts_each() -> None:
    reader = read(
        chat_event("", role="assistant", usage=usage(3, 0)),
        chat_event(" a b", usage=usage(3, 2)),
        chat_event(" c", finish="length", usage=usage(3, 3)),
        usage_event(3, 3),
    )
    chunks, counted, _ = reader.chunks()
    assert [one.tokens for one in chunks] == [0, 2, 1, 0]
    assert counted == "usage"


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_and_tools_are_no_answer(name: str) -> None:
    call = [{"index": 0, "function": {"name": "look", "arguments": '{"a"'}}]
    reader = read(
        chat_event(None, **{name: "Hmm. So"}),
        chat_event("", **{name: ""}),
        chat_event(None, tool_calls=call),
        chat_event("Yes.", finish="tool_calls"),
    )
    assert kinds(reader) == [
        Kind.REASONING,
        Kind.EMPTY,
        Kind.TOOL,
        Kind.ANSWER | Kind.FINISH | Kind.SENTENCE,
    ]
    assert [one.characters for one in reader.chunks()[0]] == [7, 0, 8, 4]


def test_text_as_a_list_of_parts() -> None:
    thinking: Any = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "abc"}]},
        {"type": "text", "text": "de"},
    ]
    reader = read(chat_event(thinking))
    assert kinds(reader) == [Kind.REASONING | Kind.ANSWER]
    assert reader.chunks()[0][0].characters == 5


def test_log_probabilities_count_tokens_of_both_apis() -> None:
    two: dict[str, Any] = {"content": [{"token": "a", "logprob": -1.0}, {"token": "b", "logprob": -2.0}]}
    assert [one.tokens for one in read(chat_event("ab", logprobs=two)).chunks()[0]] == [2]
    two = {"tokens": ["a", "b"], "token_logprobs": [-1.0, -2.0], "top_logprobs": None, "text_offset": [0, 1]}
    assert [one.tokens for one in read(completion_event("ab", logprobs=two)).chunks()[0]] == [2]


def test_several_choices_share_an_event_and_the_first_has_the_sentence() -> None:
    choices = [{"index": 1, "text": "No."}, {"index": 0, "text": "Yes"}]
    reader = read(event({"choices": choices}), completion_event(", so."), keep="text")
    assert kinds(reader) == [Kind.ANSWER, Kind.ANSWER | Kind.SENTENCE]
    assert reader.text == "Yes, so."


def test_unknown_fields_and_null_choices_are_passed_over() -> None:
    more: dict[str, Any] = {
        "timings": {"x": [1, {}]},
        "system_fingerprint": None,
        "prompt_filter_results": [],
    }
    reader = read(
        event({"choices": None, "object": "x"} | more),
        event({"choices": [{"index": 0, "delta": {"content": "a", "odd": 1}, "stop_reason": 7}]} | more),
        event({"choices": [], "usage": None}),
    )
    assert kinds(reader) == [Kind(0), Kind.ANSWER, Kind(0)]
    assert reader.error is None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"error": {"message": "out of memory", "code": 500}}, "out of memory"),
        ({"error": "it broke"}, "it broke"),
        ({"error": {"detail": "no"}}, "no"),
        ({"error": {"odd": 1}}, r'\{"odd":1\}'),
        ({"choices": [{"text": 5}]}, r"event 1 cannot be read \(Expected `str \| null`, got `int`"),
    ],
)
def test_errors_after_the_first_byte(data: dict[str, Any], message: str) -> None:
    reader = read(chat_event("a"), event(data), chat_event("b"))
    assert reader.error is not None
    assert re.match(message, reader.error)
    assert kinds(reader) == [Kind.ANSWER, Kind.ERROR, Kind.ANSWER]


def test_what_is_no_json_is_shown() -> None:
    reader = AnswerReader()
    reader.read(b"<html>oops", 5)
    assert reader.error is not None
    assert (
        reader.error.startswith("event 0 cannot be read (JSON is malformed") and "<html>oops" in reader.error
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":{"message":"too long"}}', "too long"),
        (b'{"message":"too long"}', "too long"),
        (b'{"detail":"Not Found"}', "Not Found"),
        (b'{"detail":[{"msg":"bad"}]}', '{"detail":[{"msg":"bad"}]}'),
        (b'"just text"', "just text"),
        (b"<h1>502\n  Bad Gateway</h1>", "<h1>502 Bad Gateway</h1>"),
        (b"", ""),
    ],
)
def test_errors_of_a_whole_answer(body: bytes, message: str) -> None:
    assert error_message(body) == message


def test_a_million_events_are_rows_of_numbers() -> None:
    data = json.dumps({"choices": [{"index": 0, "text": " word"}]}).encode()
    reader = AnswerReader()
    reader.read(data, 0)
    tracemalloc.start()
    try:
        for at in range(20_000):
            reader.read(data, at)
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 20_000 * 60
