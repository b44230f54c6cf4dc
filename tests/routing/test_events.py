"""Streams of events: passed on whole, watched for usage, errors and their end, however they were cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.routing.bill import Usage
from octavo.routing.events import Events
from tests.bench.scripted import DONE, chat_event, event, usage_event

STREAM = (
    chat_event("a") + b": ping\n\n" + chat_event("ü\n\nb", finish="stop") + usage_event(7, 2, cached=3) + DONE
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=12), st.booleans(), st.booleans())
def test_any_cut_gives_the_same(cuts: list[int], shows: bool, crlf: bool) -> None:
    data = STREAM.replace(b"\n\n", b"\r\n\r\n") if crlf else STREAM
    events = Events(shows_usage=shows)
    places = [0, *sorted(cuts), len(data)]
    out = b"".join(events.feed(data[a:b]) for a, b in pairwise(places))
    kept = data[: data.index(DONE[:12])]
    if not shows:
        kept = kept[: kept.rindex(b"data:")]
    assert out == kept
    assert (events.done, events.begun, events.failure) == (True, True, None)
    assert events.usage == Usage(7, 3, 2)
    assert events.chunks == 2
    assert events.close() == b""


def test_comments_before_the_first_event_are_no_beginning() -> None:
    events = Events(shows_usage=False)
    assert events.feed(b": ping\n\n: ping\n\n") == b""
    assert not events.begun
    assert events.feed(chat_event("a") + b": ping\n\n") == chat_event("a") + b": ping\n\n"


def test_an_error_among_events_ends_them_after_what_was_good() -> None:
    events = Events(shows_usage=False)
    assert events.feed(chat_event("a") + event({"error": {"message": "no"}}) + chat_event("b")) == chat_event(
        "a"
    )
    assert str(events.failure) == "its stream has an error: no"


@pytest.mark.parametrize(
    ("last", "whole"),
    [
        (chat_event("a"), False),
        (chat_event("a", finish="stop"), True),
        (chat_event("a", finish="stop").rstrip(), True),
        (usage_event(1, 1), True),
        (b"data: {half", False),
    ],
)
def test_a_stream_without_done_is_whole_where_its_last_event_says_so(last: bytes, whole: bool) -> None:
    events = Events(shows_usage=True)
    events.feed(chat_event("x") + last)
    events.close()
    assert events.done is whole
    assert (events.failure is None) is whole


def test_usage_beside_a_choice_is_read_and_passed_on() -> None:
    events = Events(shows_usage=False)
    chunk = chat_event("a", usage={"prompt_tokens": 5, "completion_tokens": 1})
    assert events.feed(chunk) == chunk
    assert events.usage == Usage(5, 0, 1)


def test_an_event_named_by_a_field_before_its_data() -> None:
    events = Events(shows_usage=False)
    data = b"event: x\n" + chat_event("a")
    assert events.feed(data) == data
    assert events.begun
