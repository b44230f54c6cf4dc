"""The OpenAPI document and its page. Knows routes, not what they do.

FastAPI writes the document, from the same routes that Starlette serves. It is imported when the document is first
asked for: with pydantic it would be half of the server's start-up time, and no request needs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

__all__ = ["openapi_document", "openapi_page"]

_METHODS_UNSAID = {"HEAD"}


def openapi_document(
    routes: Sequence[Route], bodies: Mapping[str, type], *, title: str, version: str, description: str
) -> dict[str, Any]:
    """`routes` as OpenAPI. `bodies`: by path, the msgspec type of the JSON that a route reads by itself."""
    from fastapi import APIRouter
    from fastapi.openapi.utils import get_openapi

    schemas, components = msgspec.json.schema_components(
        bodies.values(), ref_template="#/components/schemas/{name}"
    )
    content = {
        path: {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
        for path, schema in zip(bodies, schemas, strict=True)
    }
    router = APIRouter()
    for route in routes:
        if route.include_in_schema:
            router.add_api_route(
                route.path,
                route.endpoint,
                methods=sorted((route.methods or set()) - _METHODS_UNSAID),
                response_class=Response,
                openapi_extra=content.get(route.path),
            )
    document = get_openapi(title=title, version=version, description=description, routes=router.routes)
    document.setdefault("components", {}).setdefault("schemas", {}).update(components)
    return document


def openapi_page(title: str) -> HTMLResponse:
    """The interactive page over `/openapi.json`."""
    from fastapi.openapi.docs import get_swagger_ui_html

    return get_swagger_ui_html(openapi_url="/openapi.json", title=title)
