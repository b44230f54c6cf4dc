"""Answers that follow a grammar, through HTTP: every client's way to ask, what is refused and why, and that nobody else
is held up. Over the tiny model, which would say anything."""

from __future__ import annotations

import json
import re
import threading
from typing import Any

import jsonschema
import pytest
from pydantic import BaseModel

from tests.server.conftest import Server

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string", "maxLength": 5}, "b": {"enum": [1, None, "x"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
DEEP = "start: a0\n" + "".join(f"a{i}: a{i + 1}\n" for i in range(2700)) + 'a2700: "x"\n'
JSON = re.compile(r'\{"a": ".*", "b": (1|null|"x")\}', re.DOTALL)
CHAT = {"messages": [{"role": "user", "content": "Hello"}]}
TEXT = {"prompt": "Hello"}


def said(server: Server, body: dict[str, Any]) -> tuple[str, str]:
    """The text of the answer, which is streamed the same, and how it ended."""
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    body = {"max_tokens": 300, "seed": 1, "temperature": 1.0, **body}
    response = server.post(path, **body)
    assert response.status_code == 200, response.text
    [choice] = response.json()["choices"]
    text: str = choice["message"]["content"] if "messages" in body else choice["text"]
    pieces = [event["choices"][0] for event in server.events(path, **body) if event != "[DONE]"]
    streamed = [
        piece["delta"].get("content") or "" if "messages" in body else piece["text"] for piece in pieces
    ]
    assert "".join(streamed) == text
    assert pieces[-1]["finish_reason"] == choice["finish_reason"]
    return text, choice["finish_reason"]


@pytest.mark.parametrize(
    "asked",
    [
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": SCHEMA, "strict": True},
            }
        },
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA)}},
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
        {"json_schema": SCHEMA},
    ],
    ids=lambda asked: next(iter(asked)),
)
@pytest.mark.parametrize("body", [CHAT, TEXT], ids=["chat", "text"])
def test_every_way_to_give_a_schema(server: Server, body: dict[str, Any], asked: dict[str, Any]) -> None:
    text, reason = said(server, {**body, **asked})
    assert reason == "stop" and JSON.fullmatch(text)
    jsonschema.validate(json.loads(text), SCHEMA)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"structured_outputs": {"regex": "[a-c]{3}x"}}, "[a-c]{3}x"),
        ({"guided_regex": "[a-c]{3}x"}, "[a-c]{3}x"),
        ({"regex": "[a-c]{3}x"}, "[a-c]{3}x"),
        ({"structured_outputs": {"choice": ["red", "blue"]}}, "red|blue"),
        ({"guided_choice": ["red", "blue"]}, "red|blue"),
        ({"structured_outputs": {"grammar": 'start: "n" /[0-9]/'}}, "n[0-9]"),
        ({"structured_outputs": {"grammar": 'root ::= "n" [0-9]'}}, "n[0-9]"),
        ({"guided_grammar": 'root ::= "n" [0-9]'}, "n[0-9]"),
        ({"grammar": 'root ::= "n" [0-9]'}, "n[0-9]"),
        ({"ebnf": 'root ::= "n" [0-9]'}, "n[0-9]"),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
            r'\{"a":".*","b":(1|null|"x")\}',
        ),
        (
            {"structured_outputs": {"json": {"enum": [[1, 2]]}, "whitespace_pattern": "_?"}},
            r"_?\[_?1_?,_?2_?\]_?",
        ),
        ({"guided_json": {"enum": [[1, 2]]}, "guided_whitespace_pattern": "_?"}, r"_?\[_?1_?,_?2_?\]_?"),
        ({"grammar": None, "response_format": None, "guided_json": None, "regex": "a{4}"}, "aaaa"),
    ],
    ids=str,
)
def test_every_other_constraint(server: Server, asked: dict[str, Any], expected: str) -> None:
    text, reason = said(server, {**TEXT, **asked})
    assert reason == "stop" and re.fullmatch(expected, text, re.DOTALL)


@pytest.mark.parametrize(
    "asked", [{"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}]
)
def test_any_object(server: Server, asked: dict[str, Any]) -> None:
    """Case 29: white space has bounds, and JSON that is cut off says so."""
    ends = set()
    for seed in range(6):
        text, reason = said(server, {**CHAT, **asked, "seed": seed, "max_tokens": 60})
        assert text.startswith("{")
        outside = re.sub(r'"(\\.|[^"\\])*("|$)', "", text)
        assert not re.search(r"[\n\t]|  ", outside)
        if reason == "stop":
            assert isinstance(json.loads(text), dict)
        ends.add(reason)
    assert "length" in ends


def test_text_is_no_constraint(server: Server) -> None:
    free = said(server, {**CHAT, "max_tokens": 8})
    assert said(server, {**CHAT, "max_tokens": 8, "response_format": {"type": "text"}}) == free


def test_several_answers_and_several_prompts(server: Server) -> None:
    body = {"prompt": ["a", "b"], "n": 3, "regex": "[a-z]{1,6}!", "seed": 3, "max_tokens": 20}
    texts = [choice["text"] for choice in server.complete(**body)["choices"]]
    assert (
        len(texts) == 6 and all(re.fullmatch("[a-z]{1,6}!", text) for text in texts) and len(set(texts)) > 1
    )


@pytest.mark.parametrize(
    ("asked", "param", "reason"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nope"}}}},
            "response_format.json_schema.schema",
            "nope",
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema", "missing"),
        ({"response_format": {"type": "structural_tag"}}, "response_format.type", "structural_tag"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "xml"),
        ({"response_format": "json_object"}, "response_format", "an object"),
        *[({name: ""}, name, "is empty") for name in ("guided_json", "json_schema", "guided_regex", "regex",
            "guided_grammar", "grammar", "ebnf")],
        ({"structured_outputs": {"json": ""}}, "structured_outputs.json", "is empty"),
        ({"structured_outputs": {"regex": "", "grammar": "root ::= x"}}, "structured_outputs.regex", "is empty"),
        ({"guided_grammar": DEEP}, "guided_grammar", "too deep or too large"),
        ({"guided_json": {"const": 9007199254740993}}, "guided_json", "9007199254740993 at #/const"),
        ({"guided_regex": "["}, "guided_regex", "unclosed"),
        ({"regex": r"(?=a)b"}, "regex", "look"),
        ({"structured_outputs": {"regex": "["}}, "structured_outputs.regex", "unclosed"),
        ({"structured_outputs": {}}, "structured_outputs", "says nothing"),
        ({"structured_outputs": {"structural_tag": {}}}, "structured_outputs.structural_tag", "not supported"),
        ({"structured_outputs": {"json": {"uniqueItems": True}}}, "structured_outputs.json", "uniqueItems"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "JSON"),
        ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs.regex", "leave the others out"),
        ({"structured_outputs": {"json": SCHEMA}, "grammar": "root ::= x"}, "grammar", "leave the others out"),
        ({"guided_choice": []}, "guided_choice", "empty"),
        ({"guided_choice": ["a", 1]}, "guided_choice[1]", "string"),
        ({"grammar": "root ::= ("}, "grammar", "line 1"),
        ({"structured_outputs": {"grammar": "start: <|nope|>"}}, "structured_outputs.grammar", "unknown special token"),
        ({"guided_regex": "a" * 1_100_000}, "guided_regex", "1048576"),
        ({"regex": "a", "ignore_eos": True}, "ignore_eos", "grammar"),
        ({"regex": "a", "min_tokens": 1}, "min_tokens", "grammar"),
        ({"regex": "a", "use_beam_search": True}, "beam_width", "grammar"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_cannot_be_followed_is_refused(
    server: Server, asked: dict[str, Any], param: str, reason: str
) -> None:
    """Case 27: a 400 with the field and the reason, whole or streamed, and never a free answer."""
    for stream in (False, True):
        response = server.post("/v1/completions", **TEXT, **asked, stream=stream, temperature=0)
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["param"] == param and reason in error["message"]
    assert said(server, {**TEXT, "regex": "ab"}) == ("ab", "stop"), "others are served"


@pytest.mark.parametrize(
    "asked",
    [
        {"guided_regex": "((a{1,100}){1,100}){1,100}"},
        {"grammar": "root ::= " + " | ".join([f'"x{i}"' for i in range(6000)])},
        {
            "guided_json": {
                "properties": {f"p{i}": {"type": "integer"} for i in range(2000)},
                "type": "object",
            }
        },
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_what_becomes_too_complex_later_is_the_clients(server: Server, asked: dict[str, Any]) -> None:
    """It can be compiled, and its first mask be made."""
    response = server.post("/v1/completions", **TEXT, **asked, max_tokens=60)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error" and "too complex" in error["message"]


def test_large_and_recursive_schemas_hold_up_nobody(server: Server) -> None:
    """Case 28: another stream goes on while such schemas are read, refused or compiled."""
    one = {"type": "object", "properties": {"c": {"enum": [f"v{i}" for i in range(70)]}}, "required": ["c"]}
    large = {
        "type": "object",
        "properties": {f"p{i}": one for i in range(800)},
        "additionalProperties": False,
    }
    too_large = {**large, "description": "x" * 2_000_000}
    node = {"type": "object", "properties": {"v": {"type": "integer"}}, "required": ["v", "c"]}
    node["properties"] |= {"c": {"type": "array", "items": {"$ref": "#/$defs/n"}}}  # type: ignore[operator]
    tree = {"$ref": "#/$defs/n", "$defs": {"n": node}}
    again = {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"]}
    endless = {"$ref": "#/$defs/n", "$defs": {"n": again}}
    answers: dict[str, Any] = {}
    seen: list[str] = []
    gained: dict[str, int] = {}

    def ask(name: str, schema: dict[str, Any]) -> None:
        body = {**TEXT, "guided_json": schema, "max_tokens": 30}
        before = len(seen)
        answers[name] = server.post("/v1/completions", **body)
        gained[name] = len(seen) - before

    def stream() -> None:
        body = {**TEXT, "max_tokens": 400, "ignore_eos": True, "stream": True}
        with server.client.stream("POST", "/v1/completions", json=body) as response:
            for line in response.iter_lines():
                if line:
                    seen.append(line)  # noqa: PERF401 - the others look at it meanwhile

    schemas = {"large": large, "too large": too_large, "tree": tree, "endless": endless}
    streaming = threading.Thread(target=stream)
    streaming.start()
    server.until(lambda: len(seen) > 3)
    asking = [threading.Thread(target=ask, args=item) for item in schemas.items()]
    for thread in asking:
        thread.start()
    for thread in [*asking, streaming]:
        thread.join(60)
    codes = {name: response.status_code for name, response in answers.items()}
    assert codes == {"large": 200, "too large": 400, "tree": 200, "endless": 400}
    assert '"length"' in seen[-2] and gained["large"] > 10, "the stream went on meanwhile"
    assert "1048576" in answers["too large"].text and "require itself" in answers["endless"].text
    server.until_idle()


def test_the_openai_client_parses_a_model(server: Server) -> None:
    class Thing(BaseModel):
        name: str
        count: int | None

    with server.openai() as client:
        for seed in range(10):
            completion = client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": "A thing"}],
                response_format={
                    "type": "json_schema",
                    "json_schema": {"name": "thing", "schema": Thing.model_json_schema(), "strict": True},
                },
                max_tokens=400,
                seed=seed,
            )
            if completion.choices[0].finish_reason == "stop":
                Thing.model_validate_json(completion.choices[0].message.content or "")
                return
    raise AssertionError("no answer was whole")
