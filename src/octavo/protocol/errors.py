"""OpenAI's error object for every error, and its HTTP status. Knows exceptions and JSON, not a server."""

from __future__ import annotations

import math

import orjson

from octavo.errors import (
    CapacityError,
    ClientError,
    DeadlineExceeded,
    EngineDied,
    InvalidParameter,
    Overloaded,
    Quarantined,
    StorageError,
    TierFailed,
)

__all__ = ["RequestRefused", "error_body", "error_headers", "error_object", "error_status"]


_PROMPTS = ("prompt", "messages", "input")
"""Fields that are too long when they have too many tokens."""


class RequestRefused(ClientError):
    """A request that HTTP itself knows a status for: no such route or model, no key, too large, too late, too many.
    `retry_after_s`: a fair time to wait, where waiting helps."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        *,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s


def error_status(error: Exception) -> int:
    """The HTTP status: 4xx for what the caller can mend, 503 for what passes, 500 for the rest."""
    match error:
        case RequestRefused():
            return error.status
        case ClientError():
            return 400
        case Overloaded() | EngineDied():
            return 503
        case TierFailed():
            return 502
        case DeadlineExceeded():
            return 504
        case StorageError():
            return 507 if error.full else 503
        case _:
            return 500


def error_object(error: Exception) -> dict[str, dict[str, object]]:
    """`{"error": {message, type, param, code}}`. What is not an error of ours is not described to a client."""
    message, kind, param, code = str(error), "invalid_request_error", None, None
    match error:
        case RequestRefused():
            param, code = error.param, error.code
            if error.status in (401, 403):
                kind = "authentication_error"
            elif error.status == 429:
                kind = "rate_limit_error"
        case CapacityError():
            param, code = error.param, "context_length_exceeded" if error.param in _PROMPTS else None
        case InvalidParameter():
            param = error.param
        case ClientError():
            pass
        case Overloaded():
            kind, code = "overloaded_error", "overloaded"
        case Quarantined():
            kind, code = "server_error", "quarantined"
        case EngineDied():
            kind, code = "server_error", "engine_died"
        case TierFailed():
            kind, code = "server_error", "tier_failed"
        case DeadlineExceeded():
            kind, code = "timeout_error", "timeout"
        case StorageError():
            kind, code = "server_error", "storage_full" if error.full else "storage_unavailable"
        case _:
            kind, code = "server_error", "internal_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_body(error: Exception) -> bytes:
    """The error object as JSON."""
    return orjson.dumps(error_object(error))


def error_headers(error: Exception) -> dict[str, str]:
    """`Retry-After` where waiting helps; `WWW-Authenticate` where a key does; `x-should-retry`, which OpenAI's and
    Anthropic's clients obey, where another try is in vain."""
    if isinstance(error, Overloaded | RequestRefused) and error.retry_after_s is not None:
        return {"retry-after": str(max(1, math.ceil(error.retry_after_s)))}
    if isinstance(error, RequestRefused) and error.status == 401:
        return {"www-authenticate": "Bearer"}
    if isinstance(error, DeadlineExceeded | Quarantined):
        return {"x-should-retry": "false"}
    return {}
