"""Grammars as data: how they are written, sized and carried."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from octavo.errors import InvalidParameter
from octavo.sampling.grammar import MAX_GBNF_BYTES, MAX_SOURCE_BYTES, Grammar, lark_json, lark_text
from octavo.sampling.params import SamplingParams


def test_a_schema_may_be_a_dict_or_its_json() -> None:
    schema = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "null"}}}
    grammar = Grammar.json(schema)
    assert grammar == Grammar.json(msgspec.json.encode(schema).decode())
    assert list(msgspec.json.decode(grammar.source)["properties"]) == ["b", "a"], "the order is the answer's"
    assert Grammar.json() == Grammar.json({"type": "object"})


@pytest.mark.parametrize(
    ("asked", "separators"),
    [({}, (", ", ": ")), ({"compact": True}, (",", ":")), ({"whitespace_pattern": " ?"}, (",", ":"))],
)
def test_spacing_is_bounded_unless_a_pattern_says_otherwise(
    asked: dict[str, Any], separators: tuple[str, str]
) -> None:
    """Case 29."""
    options = msgspec.json.decode(Grammar.json({"x-guidance": {"coerce_one_of": True}}, **asked).source)[
        "x-guidance"
    ]
    assert (options["item_separator"], options["key_separator"]) == separators
    assert options["whitespace_flexible"] is ("whitespace_pattern" in asked)
    assert options["coerce_one_of"] is True


@pytest.mark.parametrize("schema", ["", "nonsense", "[1]", "[" * 10_000])
def test_a_text_that_is_no_schema_is_refused(schema: str) -> None:
    with pytest.raises(InvalidParameter):
        Grammar.json(schema)


def test_lark_and_gbnf_are_told_apart() -> None:
    assert Grammar.of('root ::= "a"\n').kind == "gbnf"
    assert Grammar.of('start: "a"\n').kind == "lark"
    assert Grammar.of('start: " ::= "\n').kind == "lark"


def test_sizes_are_limited_with_the_number() -> None:
    Grammar("regex", "a" * MAX_SOURCE_BYTES)
    with pytest.raises(InvalidParameter, match=str(MAX_SOURCE_BYTES)):
        Grammar("regex", "a" * (MAX_SOURCE_BYTES + 1))
    with pytest.raises(InvalidParameter, match=str(MAX_SOURCE_BYTES)):
        Grammar("regex", "é" * (MAX_SOURCE_BYTES // 2 + 1))
    with pytest.raises(InvalidParameter, match=str(MAX_GBNF_BYTES)):
        Grammar("gbnf", "a" * (MAX_GBNF_BYTES + 1))


@pytest.mark.parametrize("choices", [[], [""], ["a", ""]])
def test_choices_are_texts(choices: list[str]) -> None:
    with pytest.raises(InvalidParameter, match="choices"):
        Grammar.choice(choices)


def test_it_travels_with_the_parameters() -> None:
    params = SamplingParams(grammar=Grammar.choice(["a", "b"]), seed=1)
    for codec in (msgspec.json, msgspec.msgpack):
        assert codec.decode(codec.encode(params), type=SamplingParams) == params


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ({"ignore_eos": True}, "ignore_eos"),
        ({"min_tokens": 2}, "min_tokens"),
        ({"beam_width": 2}, "beam_width"),
    ],
)
def test_what_a_grammar_contradicts_is_refused_by_name(other: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidParameter) as raised:
        SamplingParams(grammar=Grammar("regex", "a"), temperature=0.0, **other)
    assert raised.value.param == name


def test_parts_of_a_lark_grammar() -> None:
    assert lark_text('a"\n\\é') == '"a\\"\\n\\\\é"'
    assert lark_json({"type": "integer"}).startswith('%json {"type":"integer","x-guidance":{')
