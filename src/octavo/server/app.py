"""The ASGI application: routes, errors, keys. Knows no socket and no process (see run)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

import octavo
from octavo.errors import Overloaded
from octavo.memory.accounting import Report
from octavo.server import (
    anthropic,
    batches,
    embeddings,
    errors,
    files,
    ollama,
    openai,
    responses,
    tokens,
    watch,
)
from octavo.server.admission import Settlement
from octavo.server.auth import KEYLESS, KeyCheck, open_paths
from octavo.server.batch_runner import BatchRunner
from octavo.server.document import ErrorReply, Operation, openapi_document, openapi_page, page_part
from octavo.server.edge import Edge, with_origins
from octavo.server.keys import Keys
from octavo.server.pages import PageCheck
from octavo.server.replies import json_response
from octavo.server.request_log import RequestLog
from octavo.server.response_runs import ResponseRuns
from octavo.server.response_store import ResponseStore
from octavo.server.serving import Serving
from octavo.storage.database import Database
from octavo.storage.folder import DataFolder, data_root
from octavo.telemetry.metrics import CONTENT_TYPE

__all__ = ["ROUTES", "create_app"]

_MODULES = (openai, responses, anthropic, ollama, embeddings, tokens, files, batches, watch)
"""Where routes are, with what the document says of them (see server/document)."""

_TITLE = "Octavo"
_DESCRIPTION = "A server for large language models, with the APIs of OpenAI, Anthropic and Ollama."


class _App(Starlette):
    """Starlette answers an error that nobody expected outside of all middleware; `edge` is around that too."""

    edge = Edge()
    local = False

    def build_middleware_stack(self) -> ASGIApp:
        told = self.state.serving.metrics.on_refused
        checked = PageCheck(
            super().build_middleware_stack(),
            keys=self.state.keys,
            edge=self.edge,
            local=self.local,
            told=told,
        )
        app = with_origins(checked, self.edge.origins)
        return RequestLog(app, lines=self.edge.access_log)


def create_app(
    serving: Serving,
    *,
    keys: Keys | None = None,
    data_dir: Path | None = None,
    edge: Edge | None = None,
    local: bool = False,
) -> Starlette:
    """The application around `serving`. Every route but health wants one of `keys`, where there are any. `data_dir`:
    where stored things are; None is the user's data folder. `local`: only this machine can reach it. Who serves the
    application starts and stops `app.state.batches`, settles `app.state.response_runs` and `app.state.responses`, and
    closes `app.state.database`."""
    keys = keys or Keys()
    app = _App(
        routes=list(ROUTES),
        middleware=[
            Middleware(KeyCheck, keys=keys, told=serving.metrics.on_refused),
            Middleware(Settlement),
        ],
    )
    app.edge, app.local = edge or Edge(), local
    app.router.redirect_slashes = (
        False  # a client that follows no 307 would take its empty body for the answer
    )
    app.state.serving = serving
    app.state.keys = keys
    app.state.documents = {}
    app.state.database = Database(DataFolder(data_root() if data_dir is None else data_dir))
    app.state.batches = BatchRunner(
        app,
        serving,
        app.state.database,
        keys.identities,
        frozenset(path for path, body in _bodies().items() if "seed" in body.__struct_fields__),
    )
    app.state.response_runs = ResponseRuns()
    app.state.responses = ResponseStore(app.state.database, app.state.response_runs.running)
    errors.install(app)
    return app


async def health(request: Request) -> Response:
    """200 when requests are taken and served, else 503 with the state."""
    serving: Serving = request.app.state.serving
    return _state(serving, serving.ready)


async def ready(request: Request) -> Response:
    """The same: may traffic be sent here?"""
    return await health(request)


async def live(request: Request) -> Response:
    """503 when only a restart of the server can help."""
    serving: Serving = request.app.state.serving
    return _state(serving, not serving.client.dead)


async def metrics(request: Request) -> Response:
    """Prometheus metrics."""
    serving: Serving = request.app.state.serving
    return Response(serving.metrics.text(), media_type=CONTENT_TYPE)


async def report(request: Request) -> Response:
    """What the KV memory was good for since the engine's start: use, waste by kind, what sharing saved. 503 before the
    first step."""
    found = request.app.state.serving.client.report
    if found is None:
        raise Overloaded("Nothing has been computed yet, so there is nothing to report.")
    return json_response(msgspec.to_builtins(found))


async def version(request: Request) -> Response:
    """The version of the server."""
    return json_response({"version": octavo.__version__})


async def document(request: Request) -> Response:
    """The OpenAPI document, made once for each set of routes that want a key."""
    state = request.app.state
    keyless = open_paths(state.keys)
    if keyless not in state.documents:
        # In a thread: it takes some milliseconds, and streams run here.
        made = await asyncio.to_thread(
            openapi_document,
            [route for route in request.app.routes if isinstance(route, Route)],
            _bodies(),
            _OPERATIONS
            | {path: one for module in _MODULES for path, one in getattr(module, "OPERATIONS", {}).items()},
            title=_TITLE,
            version=octavo.__version__,
            description=_DESCRIPTION,
            model=state.serving.model_name,
            keyless=keyless,
        )
        state.documents[keyless] = orjson.dumps(made)
    return Response(state.documents[keyless], media_type="application/json")


async def docs(request: Request) -> Response:
    """The document as a page to try requests on."""
    return await asyncio.to_thread(openapi_page, _TITLE)


async def docs_part(request: Request) -> Response:
    """What that page loads."""
    path = page_part(request.path_params["name"])
    if path is None:
        raise HTTPException(404)
    return FileResponse(path)


_ROUTES = (
    Route("/health", health),
    Route("/health/ready", ready),
    Route("/health/live", live),
    Route("/metrics", metrics),
    Route("/report", report),
    Route("/version", version),
    Route("/openapi.json", document, include_in_schema=False),
    Route("/docs", docs, include_in_schema=False),
    Route("/docs/{name}", docs_part, include_in_schema=False),
)

ROUTES = (*(route for module in _MODULES for route in module.ROUTES), *_ROUTES)
"""All of them."""

_STATE = {
    "type": "object",
    "properties": {"status": {"enum": ["ready", "loading", "restarting", "stalled", "draining", "dead"]}},
    "required": ["status"],
}
_OPERATIONS = {
    **{path: Operation(reply=_STATE, statuses={503: _STATE}) for path in sorted(KEYLESS)},
    "/metrics": Operation(reply={"type": "string"}, media_type="text/plain"),
    "/report": Operation(reply=Report, statuses={503: ErrorReply}),
    "/version": Operation(
        reply={"type": "object", "properties": {"version": {"type": "string"}}, "required": ["version"]}
    ),
}


def _bodies() -> dict[str, Any]:
    """By path, what the routes read by themselves."""
    return {path: body for module in _MODULES for path, body in getattr(module, "BODIES", {}).items()}


def _state(serving: Serving, good: bool) -> Response:
    return json_response({"status": serving.state}, 200 if good else 503)
