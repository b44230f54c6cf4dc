"""JSON bodies to typed requests."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import InvalidParameter
from octavo.protocol.anthropic import MessagesRequest
from octavo.protocol.body import MAX_DEPTH, decode_body
from octavo.protocol.ollama import ChatBody, EmbedBody
from octavo.protocol.openai import CompletionRequest


class Inner(msgspec.Struct):
    name: str


class Outer(msgspec.Struct):
    count: int
    inner: list[Inner] = []
    weights: dict[str, float] = {}
    maybe: str | None = None


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (b'{"count": "5"}', "count", 'count must be an integer, not "5".'),
        (b'{"count": true}', "count", "count must be an integer, not true."),
        (b'{"count": 5.5}', "count", "count must be an integer, not 5.5."),
        (b"{}", "count", "count is missing; it is required."),
        (b'{"count": 1, "inner": {}}', "inner", "inner must be a list, not {}."),
        (
            b'{"count": 1, "inner": [{"name": "a"}, {}]}',
            "inner[1].name",
            "inner[1].name is missing; it is required.",
        ),
        (b'{"count": 1, "inner": [{"name": 7}]}', "inner[0].name", "inner[0].name must be a string, not 7."),
        (
            b'{"count": 1, "weights": {"a": null}}',
            "weights[a]",
            "weights[a] must be a number, not null.",
        ),
        (
            b'{"count": 1, "weights": {"a": 1, "b": 2.5, "c": "x"}}',
            "weights[c]",
            'weights[c] must be a number, not "x".',
        ),
        (
            b'{"count": 1, "weights": {"a": 1, "b": true}}',
            "weights[b]",
            "weights[b] must be a number, not true.",
        ),
        (b'{"count": 1, "inner": 5}', "inner", "inner must be a list, not 5."),
        (b'{"count": 1, "maybe": 5}', "maybe", "maybe must be a string, not 5."),
        (b"[]", None, "The body must be a JSON object."),
        (b"", None, "The body is empty; send a JSON object."),
        (b" \n", None, "The body is empty; send a JSON object."),
        (b'{"count": 1', None, "The body is not valid JSON: Input data was truncated."),
        (
            b'{"inner": [{"name": "a\\ud800"}]}',
            "inner[0].name",
            "inner[0].name has the lone surrogate \\ud800, half a character; send both halves.",
        ),
        (
            b'{"\\udc00": 1}',
            "a key",
            "a key has the lone surrogate \\udc00, half a character; send both halves.",
        ),
        (b'{"count": 1e400}', "count", "count is 1e400; numbers must be finite and in range."),
        (b'{"weights": {"a": NaN}}', "weights.a", "weights.a is NaN; numbers must be finite and in range."),
        (b'{"count": -Infinity}', "count", "count is -Infinity; numbers must be finite and in range."),
        (
            b'{"inner": [1, 1' + b"0" * 10_000 + b"]}",
            "inner[1]",
            "inner[1] is 10000000000000000000… (10001 characters); numbers must be finite and in range.",
        ),
    ],
)
def test_errors_name_field_and_value(body: bytes, param: str | None, message: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        decode_body(body, Outer)
    assert str(caught.value) == message
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        (
            CompletionRequest,
            b'{"prompt": "a", "early_stopping": "x"}',
            'early_stopping must be true or false or "never", not "x".',
        ),
        (
            MessagesRequest,
            b'{"model": "a", "max_tokens": 1, "messages": [], "service_tier": "x"}',
            'service_tier must be "auto" or "standard_only", not "x".',
        ),
        (
            MessagesRequest,
            b'{"model": "a", "max_tokens": 1, "messages": [], "thinking": {"type": "a", "display": "x"}}',
            'thinking.display must be "omitted" or "summarized", not "x".',
        ),
        (ChatBody, b'{"model": "a", "format": "xml"}', 'format must be "json" or an object, not "xml".'),
        (
            ChatBody,
            b'{"model": "a", "options": {"num_ctx": "x"}}',
            'options.num_ctx must be an integer, not "x".',
        ),
        (
            EmbedBody,
            b'{"model": "a", "input": "", "options": {"use_mmap": "x"}}',
            "options.use_mmap must be true or",
        ),
    ],
)
def test_what_is_allowed_is_told(kind: type[msgspec.Struct], body: bytes, message: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        decode_body(body, kind)
    assert str(caught.value).startswith(message)


def test_a_long_value_is_shortened() -> None:
    with pytest.raises(InvalidParameter) as caught:
        decode_body(msgspec.json.encode({"count": "x" * 1000}), Outer)
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_depth_is_bounded_exactly(opening: bytes, closing: bytes) -> None:
    def nested(depth: int) -> bytes:
        return b'{"count": 1, "x": ' + opening * depth + b"1" + closing * depth + b"}"

    assert decode_body(nested(MAX_DEPTH - 1), Outer)[0].count == 1
    for depth in (MAX_DEPTH, 5000, 100_000):
        with pytest.raises(InvalidParameter, match=f"more than {MAX_DEPTH} deep"):
            decode_body(nested(depth), Outer)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["count", "inner", "name"]), inner)
    ),
    max_leaves=8,
)


@given(JSON)
def test_any_json_is_a_request_or_an_error_of_the_client(value: Any) -> None:
    with contextlib.suppress(InvalidParameter):
        decode_body(msgspec.json.encode(value), Outer)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_request_or_an_error_of_the_client(body: bytes) -> None:
    with contextlib.suppress(InvalidParameter):
        decode_body(body, Outer)


def test_a_whole_number_may_be_written_with_a_point() -> None:
    body = b'{"prompt": [70.0, 71], "max_tokens": 5.0, "temperature": 1.0, "seed": 7.0}'
    request, _ = decode_body(body, CompletionRequest)
    assert request.prompts() == [[70, 71]]
    assert [type(value) for value in (request.max_tokens, request.temperature, request.seed)] == [
        int,
        float,
        int,
    ]
    for wrong in (b"5.5", b'"5"', b"true", b"1e300"):
        with pytest.raises(InvalidParameter, match="max_tokens must be an integer"):
            decode_body(b'{"prompt": "a", "max_tokens": %b}' % wrong, CompletionRequest)


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, 10**40, 10**400])
def test_integers_that_nothing_can_write_again_are_named(value: int) -> None:
    """Inside what is passed on as it is, such as a schema: it is told again in the answer, and stored."""
    body = json.dumps({"prompt": "a", "guided_json": {"properties": {"x": [1, {"maximum": value}]}}}).encode()
    with pytest.raises(InvalidParameter, match=r"guided_json\.properties\.x\[1\]\.maximum is .* in range"):
        decode_body(body, CompletionRequest)
    decode_body(body.replace(str(value).encode(), b"%d" % (2**64 - 1)), CompletionRequest)
