"""JSON bytes to a typed request, and an error that names the field otherwise. Knows no field itself."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, TypeVar

import msgspec
from msgspec import inspect

from octavo.errors import InvalidParameter
from octavo.protocol.unserved import INSTEAD, REFUSED, left_over

__all__ = ["MAX_DEPTH", "Body", "decode_body", "renamed", "whole_numbers"]

MAX_DEPTH = 64
"""How deep lists and objects may be nested."""
MAX_VALUES = 1_100_000
"""In a body: a million token ids, and what stands beside them."""
MAX_KEYS = 1 << 18
MAX_OBJECTS = 1 << 16
"""Lists and objects, of which each costs ten times a value (messages, parts of them, tools)."""
_WIDE = re.compile(rb"\d{19}")
_INTEGERS = range(-(2**63), 2**64)
"""What every part of the server can write again. Fields of the body itself have narrower bounds of their own."""
_SECOND_LOOK_BYTES = 1 << 20
"""Up to this size a body that cannot be read is read again, for a better reason (some milliseconds)."""


class Body(msgspec.Struct, kw_only=True):
    """What a route with a JSON body reads; each route's own is derived from it."""

    inert: ClassVar[frozenset[str]] = frozenset({"user"})
    """Fields that are known, and nothing follows from them."""
    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = REFUSED
    """Fields that are refused where the body does not have them, with the values that ask for nothing."""
    instead: ClassVar[Mapping[str, str]] = INSTEAD
    """What to use for some of them."""

    model: str | None = None

    @classmethod
    def check_fields(cls, raw: dict[str, Any]) -> list[str]:
        """The names that nobody knows. Raises InvalidParameter for what is asked for and not there."""
        known = frozenset(cls.__struct_encode_fields__) | cls.inert
        return left_over(raw, known, cls.refused, cls.instead)


T = TypeVar("T", bound=msgspec.Struct)

_WHERE = re.compile(r"(?P<what>.*?)(?: - at `(?P<path>.*)`)?", re.DOTALL)
_EXPECTED = re.compile(r"Expected `(?P<types>[^`]*)`, got `(?P<got>[^`]*)`")
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`")
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]|(\[\.\.\.\])")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_WORDS = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "an integer",
    "object": "an object",
    "str": "a string",
}
_TYPES = {
    bool: "bool",
    dict: "object",
    float: "float",
    int: "int",
    list: "array",
    str: "str",
    type(None): "null",
}
"""msgspec's names of what JSON becomes."""


def decode_body(body: bytes, kind: type[T]) -> tuple[T, dict[str, Any]]:
    """`body` as a `kind`, and as it was written. Raises InvalidParameter.

    Types are taken as they are: "5" and true are no integers. 5.0 is one, as in JSON schema.
    """
    # Streams wait while a body is read, so what would take seconds is not begun. These count what stands in texts too;
    # no text with so many could fit.
    if body.count(b",") > MAX_VALUES or body.count(b'":') > MAX_KEYS:
        raise InvalidParameter(
            f"The body holds more than {MAX_VALUES:,} values or {MAX_KEYS:,} keys, this server's limits; send less at "
            "once."
        )
    try:
        raw = msgspec.json.decode(body)
    except RecursionError:
        raise _too_deep() from None
    except msgspec.DecodeError as error:
        raise _unreadable(body, str(error)) from None
    _check_shape(raw)
    if _WIDE.search(body) and (odd := _odd_value(raw)):
        raise odd
    if not isinstance(raw, dict):
        raise InvalidParameter("The body must be a JSON object.")
    try:
        return msgspec.convert(raw, kind), raw
    except msgspec.ValidationError as error:
        if len(body) <= _SECOND_LOOK_BYTES:
            with suppress(msgspec.ValidationError):
                whole = whole_numbers(raw)
                return msgspec.convert(whole, kind), whole
        raise _explained(str(error), raw, kind) from None


def whole_numbers(value: Any) -> Any:
    """`value` with 5 in place of each 5.0, which JSON writes for the same number."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {key: whole_numbers(child) for key, child in value.items()}
    return [whole_numbers(child) for child in value] if isinstance(value, list) else value


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Errors raised inside tell fields as the request has them. `names`: ours, or a part of ours, to its own."""
    try:
        yield
    except InvalidParameter as error:
        for ours, own in names.items():
            words = re.compile(("" if ours.startswith(".") else r"\b") + re.escape(ours) + r"\b")
            if error.param and words.search(error.param):
                raise InvalidParameter(words.sub(own, str(error)), words.sub(own, error.param)) from None
        raise


def _unreadable(body: bytes, reason: str) -> InvalidParameter:
    if not body.strip():
        return InvalidParameter("The body is empty; send a JSON object.")
    return _misread(body) or InvalidParameter(f"The body is not valid JSON: {reason}.")


class _Odd(str):
    """A number, as it was written, that no float holds."""

    __slots__ = ()


def _misread(body: bytes) -> InvalidParameter | None:
    """What Python's own parser takes and msgspec does not, with the field's name, which msgspec does not tell."""
    if len(body) > _SECOND_LOOK_BYTES:
        return None
    try:
        raw = json.loads(body, parse_int=_number, parse_float=_number, parse_constant=_Odd)
    except (ValueError, RecursionError):
        return None
    return _odd_value(raw)


def _odd_value(raw: Any) -> InvalidParameter | None:
    """Half of a surrogate pair, or a number out of range, with its name."""
    left: list[tuple[str, Any]] = [("", raw)]
    while left:
        place, value = left.pop()
        name = place if len(place) <= 200 else f"{place[:100]}…{place[-60:]}"
        if isinstance(value, int) and value not in _INTEGERS and not name.isidentifier():
            value = _Odd(value)
        if isinstance(value, _Odd):
            text = value if len(value) <= 20 else f"{value[:20]}… ({len(value)} characters)"
            return InvalidParameter(
                f"{name or 'The body'} is {text}; numbers must be finite and in range.", name or None
            )
        if isinstance(value, str) and (half := _LONE_SURROGATE.search(value)):
            return InvalidParameter(
                f"{name or 'The body'} has the lone surrogate \\u{ord(half[0]):x}, half a character; send both halves.",
                name or None,
            )
        if isinstance(value, dict):
            for key, child in value.items():
                shown = key.encode(errors="backslashreplace").decode()
                left.append((f"{name}.{shown}" if name else shown, child))
                left.append((f"a key of {name}" if name else "a key", key))
        elif isinstance(value, list):
            left.extend((f"{name}[{place}]", child) for place, child in enumerate(value))
    return None


def _number(text: str) -> float | _Odd:
    return value if math.isfinite(value := float(text)) else _Odd(text)


def _too_deep() -> InvalidParameter:
    return InvalidParameter(f"The body nests lists or objects more than {MAX_DEPTH} deep; make it flatter.")


def _check_shape(value: Any) -> None:
    """Raise InvalidParameter for too many lists and objects, or too many inside each other."""
    level, count = [value] if isinstance(value, dict | list) else [], 0
    for _ in range(MAX_DEPTH):
        count += len(level)
        if count > MAX_OBJECTS:
            raise InvalidParameter(
                f"The body holds more than {MAX_OBJECTS:,} lists and objects, this server's limit; send less at once."
            )
        level = [child for container in level for child in _containers(container)]
    if level:
        raise _too_deep()


def _containers(container: Any) -> Iterator[Any]:
    values = container.values() if isinstance(container, dict) else container
    return (value for value in values if isinstance(value, dict | list))


def _explained(message: str, raw: dict[str, Any], kind: type[msgspec.Struct]) -> InvalidParameter:
    """msgspec's error in our words: the field, what it must be, what it is."""
    match = _WHERE.fullmatch(message)
    assert match is not None
    what, path = match["what"], (match["path"] or "$").removeprefix("$")
    steps = _STEP.findall(path)
    name = path.removeprefix(".")
    if missing := _MISSING.fullmatch(what):
        name = f"{name}.{missing['name']}" if name else missing["name"]
        return InvalidParameter(f"{name} is missing; it is required.", name)
    if expected := _EXPECTED.fullmatch(what):
        # null is not offered: where it may stand, it means that the field is not there.
        types = [_WORDS.get(one, one) for one in expected["types"].split(" | ") if one != "null"]
        place, value = _found(raw, steps, expected["got"]) or (path, None)
        name = place.removeprefix(".")
        return InvalidParameter(f"{name} must be {' or '.join(types)}, not {_shown(value)}.", name)
    if what.startswith("Invalid enum value") and (found := _found(raw, steps, "str")):
        name = found[0].removeprefix(".")
        allowed = " or ".join(dict.fromkeys(_allowed(inspect.type_info(kind), steps)))
        return InvalidParameter(f"{name} must be {allowed}, not {_shown(found[1])}.", name)
    return InvalidParameter(f"{name}: {what}." if name else f"{what}.", name or None)


def _allowed(kind: inspect.Type, steps: list[tuple[str, str, str]]) -> Iterator[str]:
    """What may stand at msgspec's place, in words; "" is not offered, which means that the field is not there."""
    match kind:
        case inspect.Metadata(type=inner):
            yield from _allowed(inner, steps)
        case inspect.UnionType(types=types):
            for one in types:
                yield from _allowed(one, steps)
        case inspect.LiteralType(values=values) if not steps:
            yield from (_shown(value) for value in values if value != "")
        case inspect.BoolType() if not steps:
            yield _WORDS["bool"]
        case inspect.DictType() if not steps:
            yield _WORDS["object"]
        case inspect.StructType(fields=fields) if steps:
            for field in fields:
                if field.encode_name == steps[0][0]:
                    yield from _allowed(field.type, steps[1:])
        case inspect.ListType(item_type=inner) | inspect.DictType(value_type=inner) if steps:
            yield from _allowed(inner, steps[1:])


def _found(value: Any, steps: list[tuple[str, str, str]], got: str) -> tuple[str, Any] | None:
    """Where msgspec's place is, and what is there: a `got`. It does not say which key of a mapping it means."""
    if not steps:
        return ("", value) if _TYPES.get(type(value)) == got else None
    (field, place, somewhere), *rest = steps
    if somewhere:
        children = [(f"[{key[:40]}]", child) for key, child in value.items()]
    else:
        children = [(f".{field}", value[field])] if field else [(f"[{place}]", value[int(place)])]
    for name, child in children:
        if found := _found(child, rest, got):
            return name + found[0], found[1]
    return None


def _shown(value: Any) -> str:
    """As JSON, shortened."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:57]}..."
