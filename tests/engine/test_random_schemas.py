"""Answers at temperature 1 by random JSON schemas: whatever is whole is valid, by another library's judgement."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from octavo import LLM, Grammar, SamplingParams

Schema = dict[str, Any]

PATTERNS = [
    "^[A-Z]{2}-[0-9]{3}$",
    "^(red|green|blue)[a-f]*$",
    "^\\w{1,8}@\\w+\\.org$",
    "^a?b{2,4}[^xyz]{0,3}$",
    "[0-9]x",
]
FORMATS = ["date", "time", "date-time", "uuid", "ipv4", "email"]
NAMES = ["id", "name", "a b", "größe", 'quo"te', "x\\y", "tags", "value", "next", "kind"]


def schema_of(draw: random.Random, depth: int) -> Schema:
    """A random schema whose answers are finite and not long."""
    leaves: list[Callable[[], Schema]] = [
        lambda: {"type": "string", "minLength": draw.randrange(3), "maxLength": draw.randrange(3, 14)},
        lambda: {"type": "string", "pattern": draw.choice(PATTERNS)},
        lambda: {"type": "string", "format": draw.choice(FORMATS)},
        lambda: {
            "enum": draw.sample(
                [1, -2.5, None, True, "é", "two words", "", [1], {"k": 0}], draw.randrange(1, 5)
            )
        },
        lambda: {"const": draw.choice(["fixed", 7, None, {"deep": [1, 2]}])},
        lambda: {"type": "integer", "minimum": draw.randrange(-50, 5), "maximum": draw.randrange(5, 900)},
        lambda: {"type": "integer", "multipleOf": draw.choice([2, 5])},
        lambda: {"type": "number", "exclusiveMinimum": -1, "maximum": draw.choice([0.5, 1, 99.5])},
        lambda: {"type": draw.choice(["boolean", "null", "integer"])},
        lambda: {"type": ["null", "boolean"]},
    ]
    if depth == 0:
        return draw.choice(leaves)()

    def array() -> Schema:
        least = draw.randrange(3)
        items = schema_of(draw, depth - 1)
        if draw.random() < 0.25:
            return {"type": "array", "prefixItems": [items, schema_of(draw, 0)], "items": False}
        return {"type": "array", "items": items, "minItems": least, "maxItems": least + draw.randrange(1, 3)}

    def object_() -> Schema:
        names = draw.sample(NAMES, draw.randrange(1, 5))
        return {
            "type": "object",
            "properties": {name: schema_of(draw, depth - 1) for name in names},
            "required": draw.sample(names, draw.randrange(len(names) + 1)),
            "additionalProperties": False if draw.random() < 0.9 else {"type": "boolean"},
        }

    def union() -> Schema:
        return {"anyOf": [schema_of(draw, depth - 1) for _ in range(draw.randrange(2, 4))]}

    def referred() -> Schema:
        one = {"one": schema_of(draw, depth - 1)}
        return {"$defs": one, "type": "array", "items": {"$ref": "#/$defs/one"}, "maxItems": 2}

    nests: list[Callable[[], Schema]] = [object_, object_, array, union]
    if depth == 3:  # a reference is from the root
        nests.append(referred)
    return draw.choice([*nests, *leaves[:1]])()


def check(llm: LLM, count: int, most: int) -> int:
    """How many of `count` answers were whole; all of those are valid."""
    draw = random.Random(11)
    schemas = [schema_of(draw, 3) for _ in range(count)]
    params = [
        SamplingParams(grammar=Grammar.json(schema), temperature=1.0, seed=number, max_tokens=most)
        for number, schema in enumerate(schemas)
    ]
    prompts = [f"Example {number}, as JSON:\n" for number in range(count)]
    whole = 0
    for schema, output in zip(schemas, llm.generate(prompts, params), strict=True):
        [answer] = output.outputs
        assert answer.finish_reason in ("stop", "length")
        if answer.finish_reason == "stop":
            jsonschema.Draft202012Validator(schema).validate(json.loads(answer.text))
            whole += 1
    return whole


def test_forty_on_the_tiny_model(tiny_model_path: Path) -> None:
    with LLM(tiny_model_path, max_running=32, max_model_len=400) as llm:
        assert check(llm, 40, 300) >= 25


@pytest.mark.slow
def test_two_hundred(model_dir: Path) -> None:
    with LLM("smollm2", max_running=32, max_model_len=400) as llm:
        assert check(llm, 200, 300) >= 150
