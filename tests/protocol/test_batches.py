"""The lines of a batch's files: what is refused before anything runs, and what a result looks like."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo.errors import InvalidParameter
from octavo.protocol import batch_lines
from octavo.protocol.batch_lines import InputCheck, add_usage, answered, read_line, unanswered, with_seed
from octavo.protocol.batches import BatchUsage, CreateBatchRequest, ExpiresAfter

PATH = "/v1/completions"


def line(**fields: Any) -> bytes:
    usual = {"custom_id": "a", "method": "POST", "url": PATH, "body": {"prompt": "x"}}
    return json.dumps(
        {name: value for name, value in {**usual, **fields}.items() if value is not None}
    ).encode()


def errors(*lines: bytes) -> list[tuple[str, int | None, str | None]]:
    check = InputCheck(PATH)
    for number, text in enumerate(lines, 1):
        check.look(number, text)
    return [(error.code, error.line, error.param) for error in check.finish()]


@pytest.mark.parametrize(
    ("text", "code", "param"),
    [
        (b"{", "invalid_json_line", None),
        (b"[]", "invalid_json_line", None),
        (b'"text"', "invalid_json_line", None),
        (b"\xff", "invalid_json_line", None),
        (line(custom_id=None), "invalid_request", "custom_id"),
        (line(custom_id=7), "invalid_request", "custom_id"),
        (line(custom_id=""), "invalid_request", "custom_id"),
        (line(custom_id="x" * 513), "invalid_request", "custom_id"),
        (line(custom_id="before"), "duplicate_custom_id", "custom_id"),
        (line(method="GET"), "invalid_method", "method"),
        (line(url="/v1/chat/completions"), "mismatched_endpoint", "url"),
        (line(body=None), "invalid_request", "body"),
        (line(body=[1]), "invalid_request", "body"),
        (line(body={"stream": True}), "invalid_request", "body.stream"),
        (line(body={"background": True}), "invalid_request", "body.background"),
    ],
)
def test_what_is_wrong_with_a_line_is_told(text: bytes, code: str, param: str | None) -> None:
    assert errors(line(custom_id="before"), text) == [(code, 2, param)]


def test_good_lines_are_counted() -> None:
    check = InputCheck(PATH)
    check.look(1, line(body={"stream": False}))
    check.look(3, line(custom_id="b", unknown=1))
    assert check.finish() == [] and check.total == 2


def test_a_file_without_a_line_has_failed() -> None:
    assert errors() == [("empty_file", None, None)]


def test_too_many_lines_and_too_many_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_lines, "MAX_LINES", 2)
    assert errors(*(line(custom_id=str(i)) for i in range(3))) == [("too_many_tasks", None, None)]
    monkeypatch.setattr(batch_lines, "MAX_LINES", 1000)
    told = errors(*(b"{" for _ in range(150)))
    assert len(told) == 101 and told[-1] == ("more_errors", None, None)


def test_a_line_that_is_longer_than_a_body_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_lines, "MAX_LINE_BYTES", 50)
    assert errors(line()) == [("line_too_long", 1, None)]


def test_a_seed_is_given_once_and_for_all() -> None:
    body = b'{"prompt": "x",  "temperature":1.50}'
    seeds = {json.loads(with_seed(body, seed, number))["seed"] for seed in (1, 2) for number in range(50)}
    assert len(seeds) == 100 and all(0 <= seed < 2**53 for seed in seeds)
    assert with_seed(body, 1, 2) == with_seed(body, 1, 2)
    assert b'"temperature":1.50' in with_seed(body, 1, 2)  # what is there stays as it was written
    assert with_seed(b'{"seed": 5}', 1, 2) == b'{"seed": 5}'
    assert json.loads(with_seed(b'{"seed": null}', 1, 2))["seed"] is not None


def test_an_answer_stays_as_it_was() -> None:
    body = b'{"text":"a\\nb","n":1.0}'
    text = answered('q"', 200, body, "r1")
    assert body in text and text.endswith(b"\n") and text.count(b"\n") == 1
    told = json.loads(text)
    assert told.pop("id").startswith("batch_req_")
    response = {"status_code": 200, "request_id": "r1", "body": {"text": "a\nb", "n": 1.0}}
    assert told == {"custom_id": 'q"', "response": response, "error": None}
    assert read_line(line()).custom_id == "a"
    odd = {"text": "".join(map(chr, range(0x3000)))}
    whole = answered("q", 200, json.dumps(odd, ensure_ascii=False).encode(), None).decode()
    assert len(whole.splitlines()) == 1 and json.loads(whole)["response"]["body"] == odd
    spread = json.loads(answered("q", 400, b'{\n "a": 1\n}', None))
    assert spread["response"]["body"] == {"a": 1} and spread["response"]["request_id"].startswith("req_")


def test_tokens_are_counted_in_either_api_s_words() -> None:
    total = BatchUsage()
    details = {"cached_tokens": 1}
    bodies: list[dict[str, Any]] = [
        {"usage": {"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": details}},
        {
            "usage": {
                "input_tokens": 10,
                "output_tokens": 20,
                "output_tokens_details": {"reasoning_tokens": 5},
            }
        },
        {"usage": {"prompt_tokens": 7, "total_tokens": 7}},
        {"usage": None},
        {},
    ]
    for body in bodies:
        add_usage(total, answered("q", 200, json.dumps(body).encode(), None))
    assert (total.input_tokens, total.output_tokens, total.total_tokens) == (20, 24, 44)
    assert (total.input_tokens_details.cached_tokens, total.output_tokens_details.reasoning_tokens) == (1, 5)


def test_a_request_that_was_not_made() -> None:
    told = json.loads(unanswered("q", "batch_expired", "Too late."))
    assert told.pop("id").startswith("batch_req_")
    error = {"code": "batch_expired", "message": "Too late."}
    assert told == {"custom_id": "q", "response": None, "error": error}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/images"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k"),
        ({"output_expires_after": ExpiresAfter(anchor="now", seconds=3600)}, "output_expires_after.anchor"),
        (
            {"output_expires_after": ExpiresAfter(anchor="created_at", seconds=9)},
            "output_expires_after.seconds",
        ),
    ],
)
def test_what_cannot_be_asked_for(fields: dict[str, Any], param: str) -> None:
    usual: dict[str, Any] = {"input_file_id": "f", "endpoint": PATH, "completion_window": "24h"}
    CreateBatchRequest(**usual).check([PATH])
    with pytest.raises(InvalidParameter) as refused:
        CreateBatchRequest(**{**usual, **fields}).check([PATH])
    assert refused.value.param == param
