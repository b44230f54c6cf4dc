"""Every request's id, and a line about it at its end. Knows ASGI, and no prompt or answer: only how long they were.

Outermost of all: an error that nobody expected has its id too. Routes leave a note of what a line shall tell.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import MutableMapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.server.auth import KEYLESS
from octavo.server.dialects import REQUEST_ID_KEY, request_id_headers
from octavo.server.in_process import PROFILE
from octavo.server.keys import ALLOWANCE
from octavo.server.request_note import NOTE, RequestNote, error_word
from octavo.telemetry.logs import REQUEST_ID, with_fields

__all__ = ["RequestLog", "log_refusal"]

_logger = logging.getLogger("octavo.access")

_SANE_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_QUIET = KEYLESS | {"/metrics"}
"""Asked every few seconds by machines: their lines are of the level debug."""
_STREAMS = frozenset(
    (b"content-type", kind) for kind in (b"text/event-stream; charset=utf-8", b"application/x-ndjson")
)
_SHOWN_PATH = 200
_CLIENT_LEFT = 499
"""nginx' status for it; nobody was sent one."""


class RequestLog:
    """ASGI middleware. `lines`: log one for each request."""

    def __init__(self, app: ASGIApp, *, lines: bool) -> None:
        self._app = app
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        note = scope[NOTE] = RequestNote()
        name = scope[REQUEST_ID_KEY] = _given_id(scope) or _new_id()
        REQUEST_ID.set(name)  # of this request's task and those that it starts
        own = [(key.encode(), value.encode()) for key, value in request_id_headers(scope).items()]
        complete = False

        async def noted(message: Message) -> None:
            nonlocal complete
            if message["type"] == "http.response.start":
                if not note.status:  # else it was refused below, and this answer goes nowhere (see limits)
                    note.status = _CLIENT_LEFT if note.left else message["status"]
                note.first_s = time.monotonic()
                headers = message["headers"]
                note.streamed = any(header in _STREAMS for header in headers)
                message = {**message, "headers": [*headers, *own]}
            elif not message.get("more_body", False):
                complete = True
            await send(message)

        async def received() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect" and not complete and not note.error:
                note.left = True
            return message

        try:
            await self._app(scope, received, noted)
        except Exception:
            # Once it has been answered it has been logged too (see errors); again would say that it was two.
            if not complete:
                raise
        finally:
            if self._lines:
                _log(scope, note)


def log_refusal(status: int, error: Exception) -> str:
    """A line about a request that was refused before it was understood; its id."""
    name = _new_id()
    token = REQUEST_ID.set(name)
    _logger.info("request", extra=with_fields(status=status, error=error_word(error)))
    REQUEST_ID.reset(token)
    return name


def _log(scope: Scope, note: RequestNote) -> None:
    level = logging.DEBUG if scope["path"] in _QUIET else logging.INFO
    if not _logger.isEnabledFor(level):
        return
    now, answer, client = time.monotonic(), note.answer, scope.get("client")
    raw = scope.get("raw_path") or scope["path"].encode()
    path = raw[:_SHOWN_PATH].decode("ascii", "backslashreplace")
    usage, reasons = None, list[str]()
    if answer is not None:
        usage = answer.usage
        ends = [choice.finish_reason for choice in answer.choices if choice.finish_reason is not None]
        reasons = list(dict.fromkeys(ends))
    _logger.log(
        level,
        "request",
        extra=with_fields(
            method=scope["method"],
            path=path,
            status=note.status or _CLIENT_LEFT,
            key=None if (allowance := scope.get(ALLOWANCE)) is None else allowance.key.name,
            client=client[0] if client else None,
            profile=scope.get(PROFILE),
            stream=True if note.streamed else None,
            prompt_tokens=note.prompt_tokens if usage is None else usage.prompt,
            output_tokens=None if answer is None else answer.usage.completion or answer.arrived_tokens,
            cached_tokens=None if usage is None else usage.cached,
            first_byte_s=None if note.first_s is None else round(note.first_s - note.began_s, 6),
            duration_s=round(now - note.began_s, 6),
            finish=reasons,
            error=note.error,
            left=True if note.left else None,
            engine_id=note.engine_id,
        ),
    )


def _given_id(scope: MutableMapping[str, Any]) -> str | None:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            return value.decode() if _SANE_ID.fullmatch(value) else None
    return None


def _new_id() -> str:
    return f"req_{uuid.uuid4().hex}"
