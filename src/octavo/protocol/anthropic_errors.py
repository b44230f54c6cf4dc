"""Errors as Anthropic's API tells them: object, types, statuses. Knows exceptions and JSON, no server."""

from __future__ import annotations

from octavo.errors import Overloaded
from octavo.protocol.errors import error_object, error_status

__all__ = ["OVERLOADED", "anthropic_error", "anthropic_status"]

OVERLOADED = 529
"""The status that Anthropic's clients know as "try again"."""

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}


def anthropic_status(error: Exception) -> int:
    """The HTTP status."""
    return OVERLOADED if isinstance(error, Overloaded) else error_status(error)


def anthropic_error(error: Exception, request_id: str | None = None) -> dict[str, object]:
    """`{"type": "error", "error": {type, message}, "request_id"}`."""
    status = anthropic_status(error)
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    message = error_object(error)["error"]["message"]
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}
