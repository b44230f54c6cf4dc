"""What all routes with a JSON body share: reading it, and answering in JSON. Knows no route."""

from __future__ import annotations

from typing import Any, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response

from octavo.protocol.body import Body, decode_body
from octavo.protocol.unknown import unknown_inside
from octavo.server.deadlines import set_deadline
from octavo.server.limits import read_body
from octavo.server.serving import Serving

__all__ = ["json_response", "kept_json", "read_request"]


B = TypeVar("B", bound=Body)


async def read_request(request: Request, kind: type[B]) -> tuple[Serving, B]:
    """The body, when the server takes requests and serves the model that it names."""
    serving: Serving = request.app.state.serving
    serving.accept()
    body, raw = decode_body(await read_body(request), kind)
    serving.check_unknown([*body.check_fields(raw), *unknown_inside(raw, kind)], request.url.path)
    serving.accept(body.model)
    set_deadline(request, serving, getattr(body, "timeout", None))
    return serving, body


def json_response(value: Any, status: int = 200) -> Response:
    """`value` as the whole answer."""
    return Response(orjson.dumps(value), status, media_type="application/json")


def kept_json(value: Any) -> bytes:
    """`value` as JSON that stays in memory. What orjson returns holds 16 KiB, or its last doubling, however short it
    is; a copy holds what it says."""
    return memoryview(orjson.dumps(value)).tobytes()
