"""The routes of batches. Knows which request becomes which answer; the work is in batch_runner."""

from __future__ import annotations

import secrets
import time
import uuid
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from octavo.errors import InvalidParameter, Overloaded
from octavo.protocol.batches import WINDOW_S, BatchList, BatchObject, CreateBatchRequest, batch_object
from octavo.protocol.body import decode_body
from octavo.protocol.errors import RequestRefused
from octavo.protocol.listing import list_query, listed, page_asked, unknown_after
from octavo.protocol.unknown import unknown_inside
from octavo.server.auth import owner_of, reads_of
from octavo.server.batch_runner import BatchRunner
from octavo.server.document import STORAGE, Operation
from octavo.server.files import no_such_file
from octavo.server.limits import read_body
from octavo.server.replies import json_response
from octavo.server.serving import Serving
from octavo.storage.database import Database
from octavo.storage.records import BatchRecord

if TYPE_CHECKING:
    from octavo.storage.stored import Stored

__all__ = ["BODIES", "ENDPOINTS", "OPERATIONS", "ROUTES"]

BODIES = {"/v1/batches": CreateBatchRequest}

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
"""What a batch may ask, where this server has the route."""


_LIST, _MOST = 20, 100
"""Batches in a list, by default and at most."""


async def create_batch(request: Request) -> Response:
    """Answer every line of a file within a day, when nothing more urgent is there to do."""
    state = request.app.state
    serving: Serving = state.serving
    database: Database = state.database
    runner: BatchRunner = state.batches
    if serving.draining:
        raise Overloaded("The server is shutting down; ask another server.", retry_after_s=5)
    body, raw = decode_body(await read_body(request), CreateBatchRequest)
    unknown = sorted(raw.keys() - set(CreateBatchRequest.__struct_fields__))
    serving.check_unknown([*unknown, *unknown_inside(raw, CreateBatchRequest)], request.url.path)
    body.check([route.path for route in request.app.routes if route.path in ENDPOINTS])
    owner, now = reads_of(request.scope), int(time.time())
    file = await database.run(lambda stored: stored.files.get(body.input_file_id, owner, now))
    if file is None:
        raise no_such_file(body.input_file_id, "input_file_id")
    if file.purpose != "batch":
        raise InvalidParameter(
            f"input_file_id is a file for {file.purpose!r}; upload it with the purpose 'batch'.",
            "input_file_id",
        )
    after = body.output_expires_after
    record = BatchRecord(
        id=f"batch_{uuid.uuid4().hex}",
        owner=owner_of(request.scope),
        model=serving.model_name,
        endpoint=body.endpoint,
        input_file_id=file.id,
        completion_window=body.completion_window,
        created_at=now,
        expires_at=now + WINDOW_S,
        seed=secrets.randbits(62),
        output_name=f"file-{uuid.uuid4().hex}",
        error_name=f"file-{uuid.uuid4().hex}",
        metadata=None if body.metadata is None else msgspec.json.encode(body.metadata).decode(),
        output_expires_s=None if after is None else after.seconds,
    )
    if not await runner.add(record):
        raise RequestRefused(
            409,
            "Another server runs the batches of this data folder; send batches to that one, or give this one a folder "
            "of its own with --data-dir.",
            "batches_elsewhere",
        )
    return json_response(batch_object(record))


async def list_batches(request: Request) -> Response:
    """The batches, the newest first."""
    database: Database = request.app.state.database
    page = page_asked(request.query_params, default=_LIST, most=_MOST, orders=False)
    owner = reads_of(request.scope)
    found = await database.run(lambda stored: stored.batches.page(owner, page))
    if found is None:
        raise unknown_after(page)
    return json_response(listed([batch_object(record) for record in found[0]], more=found[1]))


async def get_batch(request: Request) -> Response:
    """A batch and how far it is."""
    database: Database = request.app.state.database
    batch_id, owner = request.path_params["batch_id"], reads_of(request.scope)
    record = await database.run(lambda stored: stored.batches.get(batch_id, owner))
    if record is None:
        raise _no_such_batch(batch_id)
    return json_response(batch_object(record))


async def cancel_batch(request: Request) -> Response:
    """End a batch; what is answered already stays."""
    database: Database = request.app.state.database
    runner: BatchRunner = request.app.state.batches
    batch_id, owner = request.path_params["batch_id"], reads_of(request.scope)

    def cancelling(stored: Stored) -> BatchRecord:
        if stored.batches.get(batch_id, owner) is None:
            raise _no_such_batch(batch_id)
        values = {"status": "cancelling", "cancelling_at": int(time.time())}
        changed = stored.batches.change(batch_id, values, of=("validating", "in_progress"))
        assert changed is not None
        return changed

    record = await database.run(cancelling)
    if record.status not in ("cancelling", "cancelled"):
        raise RequestRefused(
            409,
            f"The batch {batch_id} is {record.status.replace('_', ' ')} and cannot be cancelled any more.",
            "batch_ended",
        )
    runner.cancel(record)
    return json_response(batch_object(record))


def _no_such_batch(batch_id: str) -> RequestRefused:
    """404: there is none, or it is another's."""
    return RequestRefused(404, f"There is no batch {batch_id[:80]!r}.", "batch_not_found")


OPERATIONS = {
    "POST /v1/batches": Operation(
        reply=BatchObject,
        refusals=(409, *STORAGE),
    ),
    "GET /v1/batches": Operation(
        reply=BatchList, query=list_query(default=_LIST, most=_MOST, orders=False), refusals=(400, *STORAGE)
    ),
    "GET /v1/batches/{batch_id}": Operation(reply=BatchObject, refusals=(404, *STORAGE)),
    "POST /v1/batches/{batch_id}/cancel": Operation(reply=BatchObject, refusals=(404, 409, *STORAGE)),
}

ROUTES = (
    Route("/v1/batches", create_batch, methods=["POST"]),
    Route("/v1/batches", list_batches, methods=["GET"]),
    Route("/v1/batches/{batch_id}", get_batch, methods=["GET"]),
    Route("/v1/batches/{batch_id}/cancel", cancel_batch, methods=["POST"]),
)
