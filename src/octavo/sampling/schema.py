"""What a JSON schema asks for that llguidance would get wrong without a word. Compiles nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from octavo.errors import InvalidParameter

__all__ = ["MAX_EXACT", "without_pitfalls"]

MAX_EXACT = 1 << 53
"""llguidance has numbers as doubles."""
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_VALUES = ("const", "enum")
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Objects of schemas under names of their own."""
_NO_SCHEMAS = frozenset({*_VALUES, "default", "example", "examples", "required", "x-guidance"})


def without_pitfalls(schema: dict[str, Any]) -> bool:
    """Take out, in place, what asks for nothing and would be refused; was there any? Raises InvalidParameter, with the
    place, for what would be kept otherwise than it says: numbers that are rounded, keys that come twice."""
    changed = False
    for place, part in _schemas(schema):
        for word in _BOUNDS:
            value = part.get(word)
            if isinstance(value, int | float) and abs(value) > MAX_EXACT:
                raise _rounded(f"{place}/{word}", value)
        for word in _VALUES:
            for value in _leaves(part.get(word)):
                if isinstance(value, int) and abs(value) > MAX_EXACT:
                    raise _rounded(f"{place}/{word}", value)
        if "patternProperties" in part and ("minProperties" in part or "maxProperties" in part):
            raise InvalidParameter(
                f"The schema has patternProperties together with minProperties or maxProperties at {place}, and keys "
                "could come twice then; leave one of them out.",
                "grammar",
            )
        if part.get("uniqueItems") is False:
            del part["uniqueItems"]
            changed = True
    return changed


def _rounded(place: str, value: float) -> InvalidParameter:
    number = str(value) if abs(value) < 1 << 256 else "a huge number"  # Python may refuse to write it
    return InvalidParameter(
        f"The schema has {number} at {place}; numbers beyond ±{MAX_EXACT} (2^53) would be rounded.", "grammar"
    )


def _schemas(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The schema and all that are in it, each with its place. What only looks like one is among them: a word that is
    not known may hold anything."""
    waiting: list[tuple[str, Any]] = [("#", schema)]
    while waiting:
        place, part = waiting.pop()
        if isinstance(part, list):
            waiting += [(f"{place}/{index}", one) for index, one in enumerate(part)]
        elif isinstance(part, dict):
            yield place, part
            for word, value in part.items():
                if word in _NAMED and isinstance(value, dict):
                    waiting += [(f"{place}/{word}/{name}", one) for name, one in value.items()]
                elif word not in _NO_SCHEMAS and isinstance(value, dict | list):
                    waiting.append((f"{place}/{word}", value))


def _leaves(value: Any) -> Iterator[Any]:
    """What stands in a value that is no list and no object; a boolean is no number here."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += part
        elif isinstance(part, dict):
            waiting += part.values()
        elif not isinstance(part, bool):
            yield part
