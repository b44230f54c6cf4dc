"""What an answer says, and what it is called, from a tier's bytes. Knows OpenAI's bodies and chunks, no network."""

from __future__ import annotations

import re

import orjson

__all__ = ["response_id_of", "text_of"]

_FIRST = re.compile(rb'\s*\{\s*"id"\s*:\s*"([^"\\]{1,200})"')
"""Nearly all servers write it first: the rest need not be read."""


def response_id_of(data: bytes) -> str | None:
    """From an answer, or the first events of a stream; None where it has none."""
    start = data.find(b"data:")
    if data[:1] != b"{" and start >= 0:
        data = data[start + 5 :].split(b"\n", 1)[0]
    if match := _FIRST.match(data):
        return match[1].decode("utf-8", "replace")
    try:
        found = orjson.loads(data)["id"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) and 0 < len(found) <= 200 else None


def text_of(data: bytes) -> str:
    """What an answer says, in one piece or as a stream's events; "" where it is no text."""
    if not data.lstrip().startswith(b"{"):
        events = [line[5:].strip() for line in data.split(b"\n") if line.startswith(b"data:")]
        return "".join(_content(event, "delta") for event in events)
    return _content(data, "message")


def _content(data: bytes, where: str) -> str:
    try:
        choice = orjson.loads(data)["choices"][0]
        found = choice.get(where, {}).get("content", "") if where in choice else choice.get("text", "")
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError, AttributeError):
        return ""
    return found if isinstance(found, str) else ""
