"""What is noted of a request while it is served, for the line about it at its end. Knows lengths and times, no text."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from octavo.protocol.errors import error_object

if TYPE_CHECKING:
    from octavo.server.answer import Answer

__all__ = ["NOTE", "RequestNote", "error_word", "note_error", "note_of"]

NOTE = "octavo.note"
"""Where a request's ASGI scope has it."""


class RequestNote:
    """What is known of one request."""

    __slots__ = (
        "answer",
        "began_s",
        "engine_id",
        "error",
        "first_s",
        "left",
        "prompt_tokens",
        "status",
        "streamed",
    )

    def __init__(self) -> None:
        self.began_s = time.monotonic()
        self.first_s: float | None = None
        """When the first byte of the answer went out, or was about to."""
        self.status = 0
        self.left = False
        """The client went before the end."""
        self.error: str | None = None
        self.answer: Answer | None = None
        """What is generated, as far as it is."""
        self.streamed = False
        self.engine_id: str | None = None
        """What the ids of the engine's requests begin with."""
        self.prompt_tokens: int | None = None
        """Where there is no `answer` to tell."""


def note_of(scope: Mapping[str, Any]) -> RequestNote:
    """The request's; one that nobody reads where its application logs none."""
    note: RequestNote = scope.get(NOTE) or RequestNote()
    return note


def note_error(scope: Mapping[str, Any], error: Exception) -> None:
    """How the request failed, in a word: never the message, which may quote it."""
    note = note_of(scope)
    note.error = note.error or error_word(error)


def error_word(error: Exception) -> str:
    """Its code, or else its type, as OpenAI's clients are told."""
    told = error_object(error)["error"]
    return str(told["code"] or told["type"])
