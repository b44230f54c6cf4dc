"""The routes of stored files. Knows which request becomes which answer; tables and folders are in `storage`.

No name that a request holds is used as a path: ids are looked up in the database first, and contents lie under the ids
that it gave.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from octavo.errors import Overloaded, ServerError
from octavo.protocol.errors import RequestRefused
from octavo.protocol.files import (
    LIVES_S,
    MAX_BATCH_FILE_BYTES,
    MAX_FILE_BYTES,
    PURPOSES,
    FileDeleted,
    FileList,
    FileObject,
    expiry_of_form,
    file_object,
    purpose_of_form,
)
from octavo.protocol.listing import list_query, listed, page_asked, unknown_after
from octavo.server.auth import owner_of, reads_of
from octavo.server.document import STORAGE, Operation
from octavo.server.multipart import read_form
from octavo.server.replies import json_response
from octavo.server.serving import Serving
from octavo.storage.database import Database
from octavo.storage.folder import storing, sync_folder
from octavo.storage.housekeeping import remove_contents, tidy
from octavo.storage.records import FileRecord

__all__ = ["OPERATIONS", "ROUTES", "no_such_file"]

_logger = logging.getLogger(__name__)

_CHUNK = 256 << 10
_LIST = 10_000
_TIDY_S = 3600.0
_FIELDS = frozenset({"purpose", "expires_after[anchor]", "expires_after[seconds]"})


async def create_file(request: Request) -> Response:
    """Store a file: a form with the fields file and purpose."""
    serving: Serving = request.app.state.serving
    database: Database = request.app.state.database
    if serving.draining:
        raise Overloaded("The server is shutting down; ask another server.", retry_after_s=5)
    await asyncio.to_thread(database.folder.make)
    file_id = f"file-{uuid.uuid4().hex}"
    path = database.folder.file(file_id)
    try:
        form = await read_form(request, path, MAX_FILE_BYTES)
        serving.check_unknown(sorted(form.fields.keys() - _FIELDS), request.url.path)
        purpose, lives_s = purpose_of_form(form.fields), expiry_of_form(form.fields)
        if purpose == "batch":
            if form.nbytes > MAX_BATCH_FILE_BYTES:
                raise RequestRefused(
                    413,
                    f"The file has {form.nbytes} bytes; one for a batch may have {MAX_BATCH_FILE_BYTES}; split it.",
                    "too_large",
                    "file",
                )
            lives_s = lives_s or LIVES_S[1]
        await asyncio.to_thread(_sync_names, path)
        now = int(time.time())
        record = FileRecord(
            id=file_id,
            owner=owner_of(request.scope),
            filename=form.filename or "",
            purpose=purpose,
            nbytes=form.nbytes,
            created_at=now,
            expires_at=None if lives_s is None else now + lives_s,
        )
        await database.run(lambda stored: stored.files.add(record))
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    await _tidy_sometimes(request, database)
    return json_response(file_object(record))


async def list_files(request: Request) -> Response:
    """The stored files, the newest first."""
    database: Database = request.app.state.database
    page = page_asked(request.query_params, default=_LIST, most=_LIST, others=["purpose"])
    owner, purpose = reads_of(request.scope), request.query_params.get("purpose")
    found = await database.run(lambda stored: stored.files.page(owner, purpose, page, time.time()))
    if found is None:
        raise unknown_after(page)
    return json_response(listed([file_object(record) for record in found[0]], more=found[1]))


async def get_file(request: Request) -> Response:
    """What a file is."""
    return json_response(file_object(await _record(request)))


async def get_content(request: Request) -> Response:
    """The bytes of a file."""
    record = await _record(request)
    database: Database = request.app.state.database
    file = await asyncio.to_thread(_open, database.folder.file(record.id), record.id)
    headers = {
        "content-length": str(record.nbytes),
        "content-disposition": f"attachment; filename*=utf-8''{quote(record.filename, safe='')}",
        # A browser must not take for a page of ours what somebody has stored here.
        "x-content-type-options": "nosniff",
    }
    return StreamingResponse(_chunks(file), headers=headers, media_type="application/octet-stream")


async def delete_file(request: Request) -> Response:
    """Remove a file."""
    database: Database = request.app.state.database
    file_id, owner, now = request.path_params["file_id"], reads_of(request.scope), time.time()

    def removed(stored: Any) -> str | None:
        if stored.files.get(file_id, owner, now) is None:
            raise no_such_file(file_id)
        user: str | None = stored.files.in_use(file_id)
        if user is None:
            stored.files.remove(file_id)
        return user

    if user := await database.run(removed):
        raise RequestRefused(
            409,
            f"The file {file_id} is the input of {user}, which has not ended; cancel that first.",
            "file_in_use",
        )
    await asyncio.to_thread(remove_contents, database.folder, [file_id])
    return json_response({"id": file_id, "object": "file", "deleted": True})


def no_such_file(file_id: str, param: str | None = None) -> RequestRefused:
    """404: there is none, or it is another's."""
    return RequestRefused(404, f"There is no file {file_id[:80]!r}.", "file_not_found", param)


async def _record(request: Request) -> FileRecord:
    database: Database = request.app.state.database
    file_id, owner, now = request.path_params["file_id"], reads_of(request.scope), time.time()
    record = await database.run(lambda stored: stored.files.get(file_id, owner, now))
    if record is None:
        raise no_such_file(file_id)
    return record


async def _tidy_sometimes(request: Request, database: Database) -> None:
    state, now = request.app.state, time.monotonic()
    if now >= getattr(state, "tidy_at", 0.0):
        state.tidy_at = now + _TIDY_S
        try:
            await tidy(database)
        except ServerError as error:
            _logger.warning("files that are not needed any more are kept: %s", error)


def _sync_names(path: Path) -> None:
    with storing(path):
        sync_folder(path.parent)


def _open(path: Path, file_id: str) -> BinaryIO:
    try:
        with storing(path):
            return path.open("rb")
    except Exception as error:
        if isinstance(error.__cause__, FileNotFoundError):  # removed just now
            raise no_such_file(file_id) from None
        raise


async def _chunks(file: BinaryIO) -> AsyncIterator[bytes]:
    with file:
        while data := await asyncio.to_thread(file.read, _CHUNK):
            yield data


_UPLOAD = {
    "multipart/form-data": {
        "schema": {
            "type": "object",
            "properties": {
                "file": {"type": "string", "format": "binary"},
                "purpose": {"type": "string", "enum": list(PURPOSES)},
                "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                "expires_after[seconds]": {"type": "integer", "minimum": LIVES_S[0], "maximum": LIVES_S[1]},
            },
            "required": ["file", "purpose"],
        }
    }
}

OPERATIONS = {
    "POST /v1/files": Operation(reply=FileObject, content=_UPLOAD, refusals=(400, 408, 413, 415, *STORAGE)),
    "GET /v1/files": Operation(
        reply=FileList,
        query=list_query(default=_LIST, most=_LIST) | {"purpose": {"type": "string"}},
        refusals=(400, *STORAGE),
    ),
    "GET /v1/files/{file_id}": Operation(reply=FileObject, refusals=(404, *STORAGE)),
    "DELETE /v1/files/{file_id}": Operation(reply=FileDeleted, refusals=(404, 409, *STORAGE)),
    "GET /v1/files/{file_id}/content": Operation(
        reply={"type": "string", "format": "binary"},
        media_type="application/octet-stream",
        refusals=(404, *STORAGE),
    ),
}

ROUTES = (
    Route("/v1/files", create_file, methods=["POST"]),
    Route("/v1/files", list_files, methods=["GET"]),
    Route("/v1/files/{file_id}", get_file, methods=["GET"]),
    Route("/v1/files/{file_id}", delete_file, methods=["DELETE"]),
    Route("/v1/files/{file_id}/content", get_content, methods=["GET"]),
)
