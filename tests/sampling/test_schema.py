"""What a JSON schema asks for that would be kept otherwise than it says."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.errors import InvalidParameter
from octavo.sampling.schema import without_pitfalls

BIG = (1 << 53) + 1


@pytest.mark.parametrize(
    ("schema", "place", "value"),
    [
        ({"const": BIG}, "#/const", str(BIG)),
        ({"const": {"a": [True, -BIG]}}, "#/const", str(-BIG)),
        ({"properties": {"const": {"enum": [1, 10**30]}}}, "#/properties/const/enum", str(10**30)),
        ({"$defs": {"a": {"items": {"minimum": 10**30}}}}, "#/$defs/a/items/minimum", str(10**30)),
        ({"anyOf": [{}, {"exclusiveMaximum": 1e30}]}, "#/anyOf/1/exclusiveMaximum", "1e+30"),
        ({"multipleOf": 10**9000}, "#/multipleOf", "a huge number"),
    ],
)
def test_numbers_that_would_be_rounded(schema: dict[str, Any], place: str, value: str) -> None:
    with pytest.raises(InvalidParameter) as raised:
        without_pitfalls(schema)
    assert f"has {value} at {place};" in str(raised.value)


@pytest.mark.parametrize("word", ["minProperties", "maxProperties"])
def test_keys_that_could_come_twice(word: str) -> None:
    with pytest.raises(InvalidParameter, match="patternProperties together"):
        without_pitfalls({"items": {"patternProperties": {"a": {}}, word: 1}})


@pytest.mark.parametrize(
    "schema",
    [
        {"const": [BIG - 1, -BIG + 1, 0.5], "minimum": -(2**53), "maximum": 2**53},
        {"properties": {"minimum": {"type": "integer"}, "const": {"default": BIG}}, "examples": [{"const": BIG}]},
        {"properties": {"minProperties": {}, "patternProperties": {}}, "enum": [True, None, {"minimum": 1}]},
        {"uniqueItems": True},
        {"properties": {"uniqueItems": False}},
    ],
)  # fmt: skip
def test_what_is_kept_to_the_letter_stays(schema: dict[str, Any]) -> None:
    before = repr(schema)
    assert not without_pitfalls(schema)
    assert repr(schema) == before


def test_what_asks_for_nothing_is_taken_out() -> None:
    schema: dict[str, Any] = {"properties": {"a": {"type": "array", "uniqueItems": False}}}
    assert without_pitfalls(schema)
    assert schema == {"properties": {"a": {"type": "array"}}}


def test_a_schema_of_any_depth_is_walked() -> None:
    schema: dict[str, Any] = {"const": BIG}
    for _ in range(20_000):
        schema = {"items": schema}
    with pytest.raises(InvalidParameter):
        without_pitfalls(schema)
