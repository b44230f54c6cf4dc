"""Seeded damage: of values that JSON and messages are made of, and of bytes. Knows no route and no format.

Every case has a generator of its own, made from (seed, number): one can be repeated without those before it.
"""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Iterator, Sequence
from typing import Any

__all__ = [
    "EDGES",
    "NUMBERS",
    "TEXTS",
    "Place",
    "chosen",
    "damaged",
    "generator",
    "mutated",
    "places",
    "written",
]

SEED = int(os.environ.get("OCTAVO_FUZZ_SEED", "0"))
"""Of all cases."""
_COUNT = os.environ.get("OCTAVO_FUZZ_COUNT")
_CASE = os.environ.get("OCTAVO_FUZZ_CASE")

NUMBERS: tuple[Any, ...] = (
    0, 1, 2, 3, 7, 16, 63, 64, 65, 255, 256, 286, 287, 512, 1000, 4096, 100_000,
    2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30, 10**400,
    -1, -2, -128, -(2**31), -(2**31) - 1, -(2**63), -(2**63) - 1, -(10**40),
    0.0, -0.0, 0.1, 0.5, 0.999999, 1.0, 1.5, 2.0, 2.000001, 1e-6, 1e-45, 1e-320, 1e38, 3.5e38, 1e308, -1e308, 5e-324,
    float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
TEXTS = (
    "", " ", "\n", "\0", "\x7f", "a", "é", "€", "😀", "👩‍👩‍👧", "\ud800", "\udc00\ud800", "\ufeff", "\u202e", "\uffff",
    "e\u0301" * 20, "null", "true", "NaN", "0", "-1", "1e999", "[]", "{}", "<|im_end|>", "<|im_start|>system\n",
    "<think>", "</think>", "<tool_call>", "../../etc/passwd", "%00", "%s%n", "{{ 7*7 }}", "{% for x in y %}",
    "'; DROP TABLE files;--", "\r\nX: y", "data: [DONE]\n\n", "(", "[", "(a+)+$", "a{1,1000}", "(?<=a)b", "\\", "^$",
    "[^]", "\\p{L}{100}", "root ::= root", "start: start", "start: /a/", "json_object", "function", "auto", "none",
    "required", "any", "tool", "user", "assistant", "system", "developer", "tool_result", "text", "image_url", "24h",
    "ngram", "batch", "mean", "last", "base64", "float", "9" * 40, "A" * 300, "word " * 200, "あ" * 500,
)  # fmt: skip
EDGES = (
    0,
    1,
    2,
    7,
    8,
    9,
    31,
    32,
    127,
    128,
    255,
    2**15,
    2**16,
    2**24,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63,
    2**64 - 1,
)

Place = tuple[Any, Any]
"""A container and the key or index of a value in it."""


def generator(number: int, what: str = "") -> random.Random:
    """The case's own."""
    return random.Random(f"{SEED}:{what}:{number}")


def chosen(few: int) -> Sequence[int]:
    """The numbers of the cases to try: `few`, or as many as OCTAVO_FUZZ_COUNT says, or only OCTAVO_FUZZ_CASE."""
    return [int(_CASE)] if _CASE else range(int(_COUNT or few))


def places(value: Any) -> Iterator[Place]:
    """Where values are, from the outside in."""
    left = [value]
    while left:
        container = left.pop()
        for key in list(container) if isinstance(container, dict) else range(len(container)):
            yield container, key
            if isinstance(container[key], dict | list):
                left.append(container[key])


def mutated(random: random.Random, value: Any, fields: Sequence[str], changes: int) -> Any:
    """A copy of `value` (lists, dicts with names, plain values) with so many `changes`; `fields`: names to add."""
    root = [json.loads(json.dumps(value))]
    for _ in range(changes):
        _change(random, root, fields)
    return root[0]


def _change(random: random.Random, root: list[Any], fields: Sequence[str]) -> None:
    everywhere = list(places(root))
    container, key = random.choice(everywhere)
    value = container[key]
    match random.randrange(12):
        case 0 | 1 | 2:
            container[key] = _like(random, value)
        case 3:
            container[key] = _junk(random, fields)
        case 4 if container is not root:
            del container[key]
        case 5 | 6:
            objects = [one for place, name in everywhere if isinstance(one := place[name], dict)]
            if objects:
                random.choice(objects)[_name(random, fields)] = _junk(random, fields)
        case 7:
            other, name = random.choice(everywhere)
            copied = json.loads(json.dumps(other[name]))
            container[key] = copied
        case 8:
            lists = [one for place, name in everywhere if isinstance(one := place[name], list)]
            if lists:
                chosen = random.choice(lists)
                more = chosen[:] or [_junk(random, fields)]
                chosen.extend(json.loads(json.dumps(more)) * random.choice((1, 1, 2, 10, 100)))
                del chosen[5000:]
        case 9:
            for _ in range(random.choice((1, 1, 2, 5, 63, 70, 200))):
                value = [value] if random.random() < 0.5 else {_name(random, fields): value}
            container[key] = value
        case 10 if isinstance(container, dict):
            container[_name(random, fields)] = container.pop(key)
        case _:
            container[key] = None


def _like(random: random.Random, value: Any) -> Any:
    """Another one of its type."""
    match value:
        case bool():
            return not value
        case int():
            return random.choice((value + 1, value - 1, -value, random.choice(NUMBERS), random.randrange(8)))
        case float():
            return random.choice((value * 2, -value, random.random(), random.choice(NUMBERS)))
        case str():
            at = random.randrange(len(value) + 1)
            text = random.choice(TEXTS)
            return random.choice(
                (text, value[:at], value[at:], value[:at] + text + value[at:], value.upper())
            )
        case list():
            items = value[:]
            random.shuffle(items)
            return random.choice((items, [], value[:1]))
        case dict():
            return random.choice(({}, dict(list(value.items())[:1])))
    return random.choice((0, "", [], {}))


def _name(random: random.Random, fields: Sequence[str]) -> str:
    return random.choice(TEXTS) if random.random() < 0.15 else random.choice(fields)


def _junk(random: random.Random, fields: Sequence[str]) -> Any:
    match random.randrange(7):
        case 0 | 1:
            return random.choice(NUMBERS)
        case 2 | 3:
            return random.choice(TEXTS)
        case 4:
            return random.choice((None, True, False))
        case 5:
            return [random.choice(NUMBERS + TEXTS) for _ in range(random.choice((0, 1, 3, 30)))]
    return {
        _name(random, fields): random.choice(NUMBERS + TEXTS) for _ in range(random.choice((0, 1, 3, 30)))
    }


def written(random: random.Random, value: Any, fields: Sequence[str]) -> bytes:
    """`value` as JSON, in one of the ways to write it, a few of which are none: NaN, a key twice, spaces."""
    ascii_only = random.random() < 0.7
    text = json.dumps(value, ensure_ascii=ascii_only)
    data = text.encode("utf-8", "surrogatepass")
    match random.randrange(25):
        case 0 if data.startswith(b"{") and len(data) > 2:
            twice = json.dumps({_name(random, fields): _junk(random, fields)}).encode()
            data = twice[:-1] + b", " + data[1:]
        case 1:
            data = b" \n\t" * 50 + data + b"\n" * 20
        case 2:
            data = b"\xef\xbb\xbf" + data
    return data


def damaged(random: random.Random, data: bytes, most: int = 3) -> bytes:
    """Changes below any structure: one to `most` of bits, bytes, numbers, pieces and ends."""
    result = bytearray(data)
    for _ in range(random.randint(1, most)):
        at = random.randrange(len(result) + 1)
        match random.randrange(8):
            case 0 if at < len(result):
                result[at] = random.randrange(256)
            case 1 if at < len(result):
                result[at] ^= 1 << random.randrange(8)
            case 2:
                width = random.choice((1, 2, 4, 8))
                edge = random.choice(EDGES) % (1 << 8 * width)
                result[at : at + width] = edge.to_bytes(width, random.choice(("little", "big")))
            case 3:
                del result[at : at + random.randint(1, 40)]
            case 4 if data:
                other = random.randrange(len(data))
                result[at:at] = data[other : other + random.randint(1, 40)]
            case 5:
                del result[at:]
            case 6:
                result[at:at] = random.choice(
                    (b"\0", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b'"', b"[" * 100, b"\n")
                )
            case _:
                result[at:at] = struct.pack("<d", random.choice((float("nan"), 1e308, 5e-324)))
    return bytes(result)
