"""In whose words an error is told: OpenAI's, Anthropic's or Ollama's, by what was asked. Knows paths and headers."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from octavo.protocol.anthropic_errors import anthropic_error, anthropic_status
from octavo.protocol.errors import error_body, error_headers, error_object, error_status

if TYPE_CHECKING:
    from octavo.server.allowance import Bucket

__all__ = [
    "REQUEST_ID_KEY",
    "ErrorAnswer",
    "answer_error",
    "is_anthropic",
    "limit_headers",
    "request_id_headers",
    "request_id_of",
]

REQUEST_ID_KEY = "octavo.request_id"
"""Where a request's ASGI scope has its id."""


class ErrorAnswer(NamedTuple):
    """An error as HTTP carries it."""

    status: int
    headers: dict[str, str]
    body: bytes
    """JSON."""


def answer_error(error: Exception, scope: MutableMapping[str, Any] | None = None) -> ErrorAnswer:
    """`error` in the words of the API that was asked. `scope`: the request's, None where it was not understood."""
    headers = error_headers(error)
    if scope is None:
        return ErrorAnswer(error_status(error), headers, error_body(error))
    if is_anthropic(scope):
        body = orjson.dumps(anthropic_error(error, request_id_of(scope)))
        return ErrorAnswer(anthropic_status(error), headers, body)
    if scope["path"].startswith("/api/"):
        body = orjson.dumps({"error": error_object(error)["error"]["message"]})
        return ErrorAnswer(error_status(error), headers, body)
    return ErrorAnswer(error_status(error), headers, error_body(error))


def limit_headers(
    requests: Bucket | None, tokens: Bucket | None, scope: Mapping[str, Any]
) -> list[tuple[bytes, bytes]]:
    """What a key may use in a minute, what it has left of that, and when all of it is there again, as the API that was
    asked names them: `x-ratelimit-remaining-tokens: 950`."""
    anthropic = is_anthropic(scope)
    found = []
    for name, bucket in (("requests", requests), ("tokens", tokens)):
        if bucket is None:
            continue
        full_after = timedelta(seconds=bucket.full_after_s)
        for value, told in (
            ("limit", str(bucket.per_minute)),
            ("remaining", str(bucket.remaining)),
            ("reset", _time(datetime.now(UTC) + full_after) if anthropic else _duration(full_after)),
        ):
            header = f"anthropic-ratelimit-{name}-{value}" if anthropic else f"x-ratelimit-{value}-{name}"
            found.append((header.encode(), told.encode()))
    return found


def _time(at: datetime) -> str:
    """RFC 3339, to the next second."""
    return f"{at + timedelta(seconds=1):%Y-%m-%dT%H:%M:%SZ}"


def _duration(time: timedelta) -> str:
    """As OpenAI writes it: 12ms, 7.66s, 6m0s."""
    seconds = time.total_seconds()
    if 0 < seconds < 1:
        return f"{math.ceil(seconds * 1e3)}ms"
    if seconds < 60:
        return f"{seconds:.4g}s"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s"


def is_anthropic(scope: Mapping[str, Any]) -> bool:
    """Anthropic's route, or one of Anthropic's clients on a route that others have too."""
    path: str = scope["path"]
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return True
    return any(name == b"anthropic-version" for name, _ in scope["headers"])


def request_id_of(scope: MutableMapping[str, Any]) -> str:
    """The request's id, the same each time."""
    name: str = scope.setdefault(REQUEST_ID_KEY, f"req_{uuid.uuid4().hex}")
    return name


def request_id_headers(scope: MutableMapping[str, Any]) -> dict[str, str]:
    """As OpenAI's clients read it, and as Anthropic's do."""
    name = request_id_of(scope)
    return {"x-request-id": name, **({"request-id": name} if is_anthropic(scope) else {})}
