"""The OpenAPI document and its page. Knows routes and types of bodies and answers, not what a route does.

How a module of routes tells what it has:

- `ROUTES`: its Starlette routes. The endpoint's docstring is the operation's description.
- `BODIES` (may be left out): by path, the msgspec type of the JSON that the route reads by itself.
- `OPERATIONS` (may be left out): by path, an `Operation`: the type of the answer and what else the document should
  say. Where a path has several methods, the key is method and path: `"DELETE /v1/files/{file_id}"`.

`/v1/files/{file_id:path}` is `/v1/files/{file_id}` in keys and in the document. The errors that every route may
answer with are added here; `Operation.refusals` adds a route's own. A field's bounds, a choice of values and an
example stand where the type is: `Annotated[int, Meta(extra_json_schema={"minimum": 1})]`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from starlette.responses import HTMLResponse
from starlette.routing import Route

from octavo.protocol.body import Body

__all__ = ["STORAGE", "ErrorReply", "Operation", "openapi_document", "openapi_page", "page_part"]

_METHODS_UNSAID = frozenset({"HEAD", "OPTIONS"})
_PAGE_PARTS = frozenset({"swagger-ui-bundle.js", "swagger-ui.css", "favicon-32x32.png"})
_PARAMETER = re.compile(r"\{(\w+)(?::(\w+))?\}")
_KNOWN = frozenset(HTTPStatus)
STORAGE = (503, 507)
"""Of routes that need the disk."""
_OF_BODIES = (400, 404, 408, 413, 503)
_OF_ALL = (431, 500)


class ErrorDetail(msgspec.Struct, kw_only=True):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    """The field or header that is meant."""
    code: str | None


class ErrorReply(msgspec.Struct, kw_only=True):
    """OpenAI's error object."""

    error: ErrorDetail


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """What the document says of one route beside its docstring and its body."""

    reply: Any = None
    """The answer: a msgspec type, or a JSON schema as a dict; None where the document should not say."""
    media_type: str = "application/json"
    status: int = 200
    stream: Any = None
    """The type of one event, where the answer may be a stream."""
    stream_type: str = "text/event-stream"
    """The stream's media type; for any other than this one, `stream` is the type of a line."""
    content: Mapping[str, Any] | None = None
    """A body that is no JSON: OpenAPI's `content`, media type to `{"schema": …}`."""
    example: Any = None
    """A body to try."""
    query: Mapping[str, Mapping[str, Any]] = {}
    """JSON schemas of parameters after the question mark; a schema's description becomes the parameter's."""
    headers: Mapping[str, Mapping[str, Any]] = {}
    """The same for request headers."""
    refusals: Collection[int] = ()
    """Statuses of errors beside those of every route."""
    error: Any = ErrorReply
    """The type of an error's body."""
    statuses: Mapping[int, Any] = {}
    """Other answers that are no errors of this shape: status to type or schema."""


def openapi_document(
    routes: Sequence[Route],
    bodies: Mapping[str, Any],
    operations: Mapping[str, Operation],
    *,
    title: str,
    version: str,
    description: str,
    model: str | None = None,
    keyless: Collection[str] | None = None,
) -> dict[str, Any]:
    """`routes` as OpenAPI 3.1. `model`: the one that bodies may name. `keyless`: the paths that want no API key; None
    where none does."""
    types = list(_types(bodies, operations))
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    known = list(zip(types, schemas, strict=True))
    if model is not None:
        for body in bodies.values():
            if isinstance(body, type) and issubclass(body, Body):
                properties = components[_schema(body, known)["$ref"].rpartition("/")[2]]["properties"]
                if "default" in properties.get("model", {}):
                    properties["model"] = {"enum": [model, None], "default": None}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if not route.include_in_schema:
            continue
        path = _PARAMETER.sub(r"{\1}", route.path)
        for method in sorted((route.methods or set()) - _METHODS_UNSAID):
            key = f"{method} {path}"
            operation = operations.get(key) or operations.get(path) or Operation()
            body = bodies.get(key) or (bodies.get(path) if method != "GET" else None)
            made = _operation(route, method, operation, None if body is None else _schema(body, known), known)
            if "timeout" in getattr(body, "__struct_fields__", ()):
                made["responses"]["504"] = _answer(504, operation.error, "application/json", known)
            if keyless is not None:
                if path in keyless:
                    made["security"] = []
                else:
                    made["responses"]["401"] = _answer(401, operation.error, "application/json", known)
                    if body is not None:  # a key may have limits
                        made["responses"]["429"] = _answer(429, operation.error, "application/json", known)
            paths.setdefault(path, {})[method.lower()] = made
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version, "description": description},
        "paths": paths,
        "components": {"schemas": components},
    }
    if keyless is not None:
        document["components"]["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
        document["security"] = [{"bearer": []}, {"header": []}]
    return document


def openapi_page(title: str) -> HTMLResponse:
    """The interactive page over `/openapi.json`. All that it loads comes from here: it works without a network."""
    # Imported when it is asked for: with pydantic it would be half of the server's start-up time.
    from fastapi.openapi.docs import get_swagger_ui_html

    return get_swagger_ui_html(
        openapi_url="/openapi.json",
        title=title,
        swagger_js_url="/docs/swagger-ui-bundle.js",
        swagger_css_url="/docs/swagger-ui.css",
        swagger_favicon_url="/docs/favicon-32x32.png",
    )


def page_part(name: str) -> Path | None:
    """A file that the page loads; None where there is none of this name."""
    found = find_spec(
        "fastapi_swagger"
    )  # its files are wanted, not its code, which would be imported with them
    if found is None or not found.submodule_search_locations or name not in _PAGE_PARTS:
        return None
    return Path(found.submodule_search_locations[0]) / "resources" / name


def _types(bodies: Mapping[str, Any], operations: Mapping[str, Operation]) -> Iterator[Any]:
    """All that need a schema."""
    yield ErrorReply
    yield from bodies.values()
    for operation in operations.values():
        for kind in (operation.reply, operation.stream, operation.error, *operation.statuses.values()):
            if kind is not None and not isinstance(kind, dict):
                yield kind


def _schema(kind: Any, known: Sequence[tuple[Any, dict[str, Any]]]) -> dict[str, Any]:
    if isinstance(kind, dict):
        return kind
    return next(schema for one, schema in known if one is kind)


def _operation(
    route: Route,
    method: str,
    operation: Operation,
    body: dict[str, Any] | None,
    known: Sequence[tuple[Any, dict[str, Any]]],
) -> dict[str, Any]:
    text = " ".join((inspect.getdoc(route.endpoint) or route.name).split())
    module = getattr(route.endpoint, "__module__", "").rpartition(".")[2]
    made: dict[str, Any] = {
        "tags": [module],
        "operationId": route.name if len(route.methods or ()) <= 2 else f"{route.name}_{method.lower()}",
        "summary": text.partition(". ")[0].removesuffix("."),
        "description": text,
    }
    if parameters := list(_parameters(route, operation)):
        made["parameters"] = parameters
    content = dict(operation.content or {})
    if body is not None:
        content["application/json"] = {"schema": body}
        if operation.example is not None:
            content["application/json"]["example"] = operation.example
    if content:
        made["requestBody"] = {"required": True, "content": content}
    refusals = {*_OF_ALL, *operation.refusals, *(_OF_BODIES if content else ())}
    if route.param_convertors:
        refusals.add(404)
    responses = {operation.status: _answer(operation.status, operation.reply, operation.media_type, known)}
    if operation.stream is not None:
        data = {"anyOf": [_schema(operation.stream, known), _schema(operation.error, known)]}
        one = _event(data) if operation.stream_type == "text/event-stream" else data
        responses[operation.status]["content"][operation.stream_type] = {"schema": one}
    for status, kind in operation.statuses.items():
        responses[status] = _answer(status, kind, "application/json", known)
    for status in refusals - responses.keys():
        responses[status] = _answer(status, operation.error, "application/json", known)
    made["responses"] = {str(status): responses[status] for status in sorted(responses)}
    return made


def _event(data: dict[str, Any]) -> dict[str, Any]:
    """One event of a stream, as tools read it: its fields. `data`: of the JSON in it."""
    return {
        "type": "object",
        "description": "One event.",
        "properties": {
            "event": {"type": "string"},
            "data": {
                "anyOf": [
                    {"const": "[DONE]"},
                    {"type": "string", "contentMediaType": "application/json", "contentSchema": data},
                ]
            },
        },
        "required": ["data"],
    }


def _answer(
    status: int, kind: Any, media_type: str, known: Sequence[tuple[Any, dict[str, Any]]]
) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": HTTPStatus(status).phrase if status in _KNOWN else "Overloaded"}
    if kind is not None:
        answer["content"] = {media_type: {"schema": _schema(kind, known)}}
    if status in (429, 503, 529):
        answer["headers"] = {
            "Retry-After": {"description": "Seconds, where waiting helps.", "schema": {"type": "string"}}
        }
    return answer


def _parameters(route: Route, operation: Operation) -> Iterator[dict[str, Any]]:
    for match in _PARAMETER.finditer(route.path):
        kind = {"int": "integer", "float": "number"}.get(match[2] or "", "string")
        yield {"name": match[1], "in": "path", "required": True, "schema": {"type": kind}}
    for place, parameters in (("query", operation.query), ("header", operation.headers)):
        for name, given in parameters.items():
            schema = dict(given)
            text = schema.pop("description", "")
            yield {"name": name, "in": place, "required": False, "description": text, "schema": schema}
