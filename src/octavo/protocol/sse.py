"""Server-sent events, as OpenAI's clients read them. Knows the framing, not what is in an event."""

from __future__ import annotations

from octavo.protocol.errors import error_body

__all__ = ["DONE", "MEDIA_TYPE", "error_event", "event"]

MEDIA_TYPE = "text/event-stream; charset=utf-8"

DONE = b"data: [DONE]\n\n"
"""The last event of every stream."""


def event(data: bytes) -> bytes:
    """One event. `data` is JSON without line breaks, as every encoder here writes it."""
    return b"data: " + data + b"\n\n"


def error_event(error: Exception) -> bytes:
    """An error after the first byte, when no status can tell it any more."""
    return event(error_body(error))
