"""In whose words an error is told: OpenAI's, Anthropic's or Ollama's, by what was asked. Knows paths and headers."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, MutableMapping
from typing import Any, NamedTuple

import orjson

from octavo.protocol.anthropic_errors import anthropic_error, anthropic_status
from octavo.protocol.errors import error_body, error_headers, error_object, error_status

__all__ = ["ErrorAnswer", "answer_error", "is_anthropic", "request_id_of"]

_REQUEST_ID = "octavo.request_id"


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
        name = request_id_of(scope)
        body = orjson.dumps(anthropic_error(error, name))
        return ErrorAnswer(anthropic_status(error), {**headers, "request-id": name}, body)
    if scope["path"].startswith("/api/"):
        body = orjson.dumps({"error": error_object(error)["error"]["message"]})
        return ErrorAnswer(error_status(error), headers, body)
    return ErrorAnswer(error_status(error), headers, error_body(error))


def is_anthropic(scope: Mapping[str, Any]) -> bool:
    """Anthropic's route, or one of Anthropic's clients on a route that others have too."""
    path: str = scope["path"]
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return True
    return any(name == b"anthropic-version" for name, _ in scope["headers"])


def request_id_of(scope: MutableMapping[str, Any]) -> str:
    """The request's name as Anthropic's clients show it, the same each time."""
    name: str = scope.setdefault(_REQUEST_ID, f"req_{uuid.uuid4().hex}")
    return name
