"""JSON bytes to a typed request, and an error that names the field otherwise. Knows no field itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from octavo.errors import InvalidParameter

__all__ = ["MAX_DEPTH", "decode_body", "unknown_fields"]

MAX_DEPTH = 64
"""How deep lists and objects may be nested."""

T = TypeVar("T", bound=msgspec.Struct)

_WHERE = re.compile(r"(?P<what>.*?)(?: - at `(?P<path>.*)`)?", re.DOTALL)
_EXPECTED = re.compile(r"Expected `(?P<types>[^`]*)`, got `[^`]*`")
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`")
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]|(\[\.\.\.\])")
_WORDS = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "an integer",
    "null": "null",
    "object": "an object",
    "str": "a string",
}


def decode_body(body: bytes, kind: type[T]) -> tuple[T, dict[str, Any]]:
    """`body` as a `kind`, and as it was written. Raises InvalidParameter.

    Types are taken as they are: "5" and true are no integers, 5.0 is none either.
    """
    try:
        raw = msgspec.json.decode(body)
    except RecursionError:
        raise _too_deep() from None
    except msgspec.DecodeError as error:
        raise InvalidParameter(f"The body is not valid JSON: {error}.") from None
    if _deeper_than(raw, MAX_DEPTH):
        raise _too_deep()
    if not isinstance(raw, dict):
        raise InvalidParameter("The body must be a JSON object.")
    try:
        return msgspec.convert(raw, kind), raw
    except msgspec.ValidationError as error:
        raise _explained(str(error), raw) from None


def unknown_fields(raw: dict[str, Any], kind: type[msgspec.Struct]) -> list[str]:
    """Names in `raw` that `kind` does not have, sorted."""
    return sorted(raw.keys() - set(kind.__struct_encode_fields__))


def _too_deep() -> InvalidParameter:
    return InvalidParameter(f"The body nests lists or objects more than {MAX_DEPTH} deep; make it flatter.")


def _deeper_than(value: Any, depth: int) -> bool:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(depth):
        if not level:
            return False
        level = [child for container in level for child in _containers(container)]
    return bool(level)


def _containers(container: Any) -> Iterator[Any]:
    values = container.values() if isinstance(container, dict) else container
    return (value for value in values if isinstance(value, dict | list))


def _explained(message: str, raw: dict[str, Any]) -> InvalidParameter:
    """msgspec's error in our words: the field, what it must be, what it is."""
    match = _WHERE.fullmatch(message)
    assert match is not None
    what, path = match["what"], (match["path"] or "$").removeprefix("$")
    name = path.removeprefix(".")
    if missing := _MISSING.fullmatch(what):
        name = f"{name}.{missing['name']}" if name else missing["name"]
        return InvalidParameter(f"{name} is missing; it is required.", name)
    if expected := _EXPECTED.fullmatch(what):
        types = [_WORDS.get(kind, kind) for kind in expected["types"].split(" | ")]
        return InvalidParameter(f"{name} must be {' or '.join(types)}, not {_shown(raw, path)}.", name)
    return InvalidParameter(f"{name}: {what}." if name else f"{what}.", name or None)


def _shown(raw: Any, path: str) -> str:
    """The value at msgspec's `path` as JSON, shortened."""
    value = raw
    for name, place, somewhere in _STEP.findall(path):
        if somewhere:  # a key of a mapping that msgspec does not name
            return "what it is"
        value = value[name] if name else value[int(place)]
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:57]}..."
