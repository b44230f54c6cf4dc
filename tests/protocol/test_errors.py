"""The error object and the status of every exception."""

from __future__ import annotations

import msgspec
import pytest

from octavo.errors import (
    CapacityError,
    ClientError,
    EngineDied,
    InvalidParameter,
    ModelError,
    Overloaded,
    ServerError,
    TierFailed,
)
from octavo.protocol.errors import RequestRefused, error_body, error_headers, error_status
from octavo.protocol.sse import error_event


@pytest.mark.parametrize(
    ("error", "status", "kind", "code", "param"),
    [
        (InvalidParameter("m", "top_p"), 400, "invalid_request_error", None, "top_p"),
        (CapacityError("m", "prompt"), 400, "invalid_request_error", "context_length_exceeded", "prompt"),
        (CapacityError("m", "n"), 400, "invalid_request_error", None, "n"),
        (ModelError("m"), 400, "invalid_request_error", None, None),
        (ClientError("m"), 400, "invalid_request_error", None, None),
        (
            RequestRefused(404, "m", "model_not_found", "model"),
            404,
            "invalid_request_error",
            "model_not_found",
            "model",
        ),
        (RequestRefused(401, "m", "invalid_api_key"), 401, "authentication_error", "invalid_api_key", None),
        (Overloaded("m"), 503, "overloaded_error", "overloaded", None),
        (TierFailed("m"), 502, "server_error", "tier_failed", None),
        (EngineDied("m"), 503, "server_error", "engine_died", None),
        (ServerError("m"), 500, "server_error", "internal_error", None),
        (RuntimeError("m"), 500, "server_error", "internal_error", None),
    ],
)
def test_objects(error: Exception, status: int, kind: str, code: str | None, param: str | None) -> None:
    assert error_status(error) == status
    expected = {"error": {"message": "m", "type": kind, "param": param, "code": code}}
    assert msgspec.json.decode(error_body(error)) == expected
    assert msgspec.json.decode(error_event(error).removeprefix(b"data: ").removesuffix(b"\n\n")) == expected


def test_headers_say_what_helps() -> None:
    assert error_headers(Overloaded("m", retry_after_s=2.6)) == {"retry-after": "3"}
    assert error_headers(Overloaded("m", retry_after_s=0.1)) == {"retry-after": "1"}
    assert error_headers(RequestRefused(401, "m")) == {"www-authenticate": "Bearer"}
    assert error_headers(ServerError("m")) == {}
