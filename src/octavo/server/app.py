"""The ASGI application: routes, errors, keys. Knows no socket and no process (see run)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.middleware import Middleware
from starlette.responses import Response

import octavo
from octavo.server import errors, openai
from octavo.server.auth import KeyCheck
from octavo.server.serving import Serving
from octavo.telemetry.metrics import CONTENT_TYPE

__all__ = ["create_app"]


def create_app(serving: Serving, *, api_keys: Sequence[str] = ()) -> FastAPI:
    """The application around `serving`. With `api_keys`, every route but health wants one of them."""
    app = FastAPI(
        title="Octavo",
        version=octavo.__version__,
        description="An OpenAI-compatible server for large language models.",
        middleware=[Middleware(KeyCheck, keys=api_keys)] if api_keys else [],
        openapi_url="/openapi.json",
        redoc_url=None,
    )
    app.state.serving = serving
    errors.install(app)
    app.include_router(openai.router)
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]

    @app.head("/health", include_in_schema=False)
    @app.get("/health", response_class=Response)
    async def health() -> Response:
        """200 when requests are taken and served, else 503 with the state."""
        return _state(serving.ready)

    @app.head("/health/ready", include_in_schema=False)
    @app.get("/health/ready", response_class=Response)
    async def ready() -> Response:
        """The same: may traffic be sent here?"""
        return _state(serving.ready)

    @app.head("/health/live", include_in_schema=False)
    @app.get("/health/live", response_class=Response)
    async def live() -> Response:
        """503 when only a restart of the server can help."""
        return _state(not serving.client.dead)

    def _state(good: bool) -> Response:
        return _json({"status": serving.state}, 200 if good else 503)

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Prometheus metrics."""
        return Response(serving.metrics.text(), media_type=CONTENT_TYPE)

    @app.get("/version", response_class=Response)
    async def version() -> Response:
        """The version of the server."""
        return _json({"version": octavo.__version__})

    return app


def _json(value: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")


def _document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with the bodies that routes read by themselves. Made once."""
    if not app.openapi_schema:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        document.setdefault("components", {}).setdefault("schemas", {}).update(openai.COMPONENTS)
        app.openapi_schema = document
    return app.openapi_schema
