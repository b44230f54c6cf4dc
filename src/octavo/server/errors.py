"""Every error as a response, in the words of the API that was asked. Knows HTTP, not what went wrong where."""

from __future__ import annotations

import logging

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from octavo.errors import OctavoError, ServerError
from octavo.protocol.errors import RequestRefused
from octavo.server.dialects import answer_error
from octavo.server.request_note import note_error

__all__ = ["error_response", "install"]

_logger = logging.getLogger(__name__)


def error_response(
    error: Exception, scope: Scope | None = None, *, headers: dict[str, str] | None = None
) -> Response:
    """The error with its status. After 408 and 413 the rest of the body is unread, so the connection closes."""
    told = answer_error(error, scope)
    if scope is not None:
        note_error(scope, error)
    headers = {**(headers or {}), **told.headers}
    if told.status in (408, 413):
        headers["connection"] = "close"
    return Response(told.body, told.status, headers, media_type="application/json")


def install(app: Starlette) -> None:
    """Answer every exception of `app`'s routes."""
    app.add_exception_handler(OctavoError, _ours)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unexpected)


async def _ours(request: Request, error: Exception) -> Response:
    return error_response(error, request.scope)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    method, path = request.method, request.url.path[:200]
    match error.status_code:
        case 404:
            message = f"There is no {path}; see /docs for what there is."
        case 405:
            message = f"{path} does not take {method}."
        case _:
            message = str(error.detail)
    headers = dict(error.headers or {})
    if error.status_code == 405:
        headers["Allow"] = ", ".join(sorted(_methods(request)))
    return error_response(RequestRefused(error.status_code, message), request.scope, headers=headers)


def _methods(request: Request) -> set[str]:
    """All that the path takes: each route knows only its own, and a path may have several. One that is spelled out is
    not an id of another."""
    matching = [
        route
        for route in request.app.routes
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
    ]
    spelled = [route for route in matching if not route.param_convertors]
    return {method for route in spelled or matching for method in route.methods or ()}


async def _unexpected(request: Request, error: Exception) -> Response:
    _logger.exception("%s %s failed", request.method, request.url.path, exc_info=error)
    return error_response(
        ServerError("Something went wrong in the server; its log says what."), request.scope
    )
