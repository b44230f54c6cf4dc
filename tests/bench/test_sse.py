"""Events are cut out of a stream the same way, however it was split, and as the WHATWG's rules say."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bench.sse import EventParser

CASES = [
    (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
    (b"data:a\n\n", [b"a"]),
    (b"data:  a\n\n", [b" a"]),
    (b"data: a\ndata: b\ndata\n\n", [b"a\nb\n"]),
    (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
    (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
    (b"data: a\r\n\ndata: b\n\r\n", [b"a", b"b"]),
    (b": ping\n\n: another\n\ndata: a\n\n", [b"a"]),
    (b": ping\ndata: a\n: in the middle\n\n", [b"a"]),
    (b"event: delta\nid: 7\nretry: 10\ndata: a\n\n", [b"a"]),
    (b"id: 7\n\ndata: a\n\n", [b"a"]),
    (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
    (b"\n\n\ndata: a\n\n\n\ndata: b\n\n", [b"a", b"b"]),
    (b"data: a\n\ndata: last", [b"a", b"last"]),
    (b"data: a\n\ndata: last\n", [b"a", b"last"]),
    (b"data: a\n\ndata: last\r\n", [b"a", b"last"]),
    (b"datafile: a\ndata : a\n\n", []),
    (b"data:\n\n", []),
    (b"", []),
    (b"\xef\xbb", []),
    ("data: é — 漢字\n\n".encode(), ["é — 漢字".encode()]),
]


def events(*reads: bytes) -> list[bytes]:
    parser = EventParser()
    found = [event for data in reads for event in parser.feed(data)]
    return found + parser.close()


@pytest.mark.parametrize(("stream", "wanted"), CASES)
def test_events_of_a_stream_split_at_every_byte_and_every_two(stream: bytes, wanted: list[bytes]) -> None:
    assert events(stream) == wanted
    assert events(*(stream[place : place + 1] for place in range(len(stream)))) == wanted
    for first, second in itertools.combinations_with_replacement(range(len(stream) + 1), 2):
        assert events(stream[:first], stream[first:second], stream[second:]) == wanted


LINES = st.sampled_from(
    ["data: {}", "data:x", "data", ": c", "", "", "event: e", "data:  y", "\ufeff", "id", "data: é"]
)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])


def by_the_rules(stream: bytes) -> list[bytes]:
    """The naive way: the whole stream at once, line by line (WHATWG HTML 9.2.6), with the last event given out."""
    text = stream.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    found: list[bytes] = []
    data: list[bytes] = []
    for line in [*text.split(b"\n"), b""]:
        if line == b"":
            if b"\n".join(data):
                found.append(b"\n".join(data))
            data = []
        elif not line.startswith(b":"):
            name, _, value = line.partition(b":")
            if name == b"data":
                data.append(value[1:] if value.startswith(b" ") else value)
    return found


@given(st.lists(st.tuples(LINES, ENDS), max_size=12), st.lists(st.integers(0, 120), max_size=8))
def test_any_stream_in_any_pieces_is_as_the_rules_say(lines: list[tuple[str, str]], cuts: list[int]) -> None:
    stream = "".join(line + end for line, end in lines).encode()
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[start:stop] for start, stop in itertools.pairwise(places)]
    assert events(*pieces) == by_the_rules(stream)


def test_an_event_is_given_out_with_the_read_that_ends_it() -> None:
    parser = EventParser()
    assert parser.feed(b"data: a\n") == []
    assert parser.feed(b"\n") == [b"a"]
    assert parser.feed(b"data: b\r\n\r") == [b"b"]
    assert parser.feed(b"\ndata: c\r\n") == []
    assert parser.feed(b"\r\n") == [b"c"]
    assert parser.close() == []
