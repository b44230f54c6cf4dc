"""Fields inside a body's objects that no type of ours has. Knows types and JSON, no field by name."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator
from typing import Any

import msgspec
from msgspec import inspect

__all__ = ["unknown_inside", "unknown_of"]

_NOTHING: tuple[Any, ...] = (None, [], {})
"""A client that sends back what it was sent has fields of other servers with these values; they ask for nothing."""


def unknown_inside(raw: dict[str, Any], kind: type[msgspec.Struct]) -> list[str]:
    """Paths such as `messages[0].foo`. The body's own fields are not looked at (see Body.check_fields)."""
    fields = _fields(kind)
    return [
        path
        for name, inner in fields.items()
        if inner is not None and name in raw
        for path in _within(raw[name], inner, name)
    ]


def unknown_of(value: Any, known: Collection[str], path: str) -> Iterator[str]:
    """Of one object, which no type of ours describes; nothing of what is none."""
    for name, child in value.items() if isinstance(value, dict) else ():
        if name not in known and (child not in _NOTHING or isinstance(child, bool)):
            yield f"{path}.{name}"


def _within(value: Any, kind: inspect.Type, path: str) -> Iterator[str]:
    match kind:
        case inspect.Metadata(type=inner):
            yield from _within(value, inner, path)
        case inspect.UnionType(types=types):
            for one in types:
                yield from _within(value, one, path)
        case inspect.StructType(cls=cls, tag_field=tag_field, tag=tag) if isinstance(value, dict):
            if tag_field is not None and value.get(tag_field) != tag:
                return  # it is another one of a union
            fields = _fields(cls)
            for name, child in value.items():
                if name == tag_field:
                    continue
                if name not in fields:
                    yield from unknown_of({name: child}, (), path)
                elif (kept := fields[name]) is not None:
                    yield from _within(child, kept, f"{path}.{name}")
        case inspect.ListType(item_type=item) if isinstance(value, list):
            for place, child in enumerate(value):
                yield from _within(child, item, f"{path}[{place}]")


@functools.cache
def _fields(cls: type[msgspec.Struct]) -> dict[str, inspect.Type | None]:
    """By name, the type where it has objects of ours inside, else None."""
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    return {field.encode_name: field.type if _has_structs(field.type) else None for field in info.fields}


def _has_structs(kind: inspect.Type) -> bool:
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    match kind:
        case inspect.StructType():
            return True
        case inspect.ListType(item_type=item):
            return _has_structs(item)
        case inspect.UnionType(types=types):
            return any(map(_has_structs, types))
    return False
