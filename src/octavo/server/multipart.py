"""A multipart form, read as it comes: small fields in memory, one file on the disk. Knows forms, not what they ask."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import BinaryIO

from starlette.requests import ClientDisconnect, Request

from octavo.errors import InvalidParameter
from octavo.protocol.errors import RequestRefused
from octavo.server.limits import BODY_S, discard_body
from octavo.storage.folder import storing

__all__ = ["Form", "read_form"]

MAX_FIELDS = 16
MAX_FIELD_BYTES = 4096
MAX_FRAME_BYTES = 64 << 10
"""Of a body, beside its file: boundaries, heads of parts, fields."""
_WRITE_BYTES = 1 << 20
"""What gathers before a thread writes it."""


class Form:
    """What a form said. Its file is written to `target`, forced to the disk by `sync`."""

    def __init__(self, target: Path, max_file_bytes: int) -> None:
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        """As its sender named it; None: there was no file."""
        self.nbytes = 0
        self.complete = False
        """The last boundary has come."""
        self.too_large = False
        self._target = target
        self._max_file_bytes = max_file_bytes
        self._sink: BinaryIO | None = None
        self._waiting = bytearray()
        self._header = bytearray()
        self._value = bytearray()
        self._disposition = b""
        self._name: str | None = None
        self._text = bytearray()
        self._parts = 0

    def on_part_begin(self) -> None:
        self._parts += 1
        if self._parts > MAX_FIELDS:
            raise InvalidParameter(f"The form has more than {MAX_FIELDS} parts; send only what is asked for.")
        self._disposition, self._name = b"", None
        self._text.clear()

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def on_header_end(self) -> None:
        if bytes(self._header).lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._header.clear()
        self._value.clear()

    def on_headers_finished(self) -> None:
        from python_multipart.multipart import parse_options_header

        _, options = parse_options_header(self._disposition)
        if b"name" not in options:
            raise InvalidParameter(
                "A part of the form has no name; send Content-Disposition: form-data; name=…"
            )
        name = options[b"name"].decode(errors="replace")
        if b"filename" not in options:
            if name == "file":
                raise InvalidParameter("file is a plain field; send it as a file, with a filename.", "file")
            self._name = name
            return
        if name != "file":
            raise InvalidParameter(f"{name[:60]} is a file, and only the field file may be one.", name[:60])
        if self.filename is not None:
            raise InvalidParameter("file is there twice; send one file in a request.", "file")
        self.filename = options[b"filename"].decode(errors="replace")

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._name is None:
            self.nbytes += end - start
            self.too_large = self.nbytes > self._max_file_bytes
            if not self.too_large:
                self._waiting += memoryview(data)[start:end]
            return
        self._text += data[start:end]
        if len(self._text) > MAX_FIELD_BYTES:
            raise InvalidParameter(
                f"{self._name[:60]} has more than {MAX_FIELD_BYTES} bytes.", self._name[:60]
            )

    def on_part_end(self) -> None:
        if self._name is not None:
            if self._name in self.fields:
                raise InvalidParameter(f"{self._name[:60]} is there twice; send it once.", self._name[:60])
            self.fields[self._name] = self._text.decode(errors="replace")

    def on_end(self) -> None:
        self.complete = True

    async def write(self, at_least: int = _WRITE_BYTES) -> None:
        """Bring what waits to the disk, when it is so much. Raises ServerError."""
        if len(self._waiting) >= at_least:
            data, self._waiting = self._waiting, bytearray()
            await asyncio.to_thread(self._write, data)

    async def sync(self) -> None:
        """Force all of it to the disk. Raises ServerError."""
        await self.write(0)
        await asyncio.to_thread(self._sync)

    def close(self) -> None:
        """Close the file; it stays where it is."""
        if self._sink is not None:
            self._sink.close()

    def _write(self, data: bytearray) -> None:
        with storing(self._target):
            if self._sink is None:
                self._sink = os.fdopen(
                    os.open(self._target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb", 0
                )
            view = memoryview(data)
            while view:
                view = view[self._sink.write(view) :]

    def _sync(self) -> None:
        assert self._sink is not None
        with storing(self._target):
            os.fsync(self._sink.fileno())


async def read_form(request: Request, target: Path, max_file_bytes: int) -> Form:
    """The whole form, its field `file` in `target`, which is made. A part of it may be there when this fails.

    Raises InvalidParameter, RequestRefused (408, 413, 415) and ServerError for what the disk refuses.
    """
    from python_multipart.exceptions import MultipartParseError
    from python_multipart.multipart import MultipartParser, parse_options_header

    kind, options = parse_options_header(request.headers.get("content-type"))
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise RequestRefused(
            415, "The body must be multipart/form-data with a boundary; send the file in the field file."
        )
    form = Form(target, max_file_bytes)
    try:
        parser = MultipartParser(
            options[b"boundary"],
            {
                name: getattr(form, name)
                for name in (
                    "on_part_begin",
                    "on_header_field",
                    "on_header_value",
                    "on_header_end",
                    "on_headers_finished",
                    "on_part_data",
                    "on_part_end",
                    "on_end",
                )
            },  # type: ignore[arg-type]
        )
        await _feed(request, parser.write, form, max_file_bytes)
        if not form.complete:
            raise InvalidParameter("The form ends early: its last boundary is missing.")
        if form.filename is None:
            raise InvalidParameter("file is missing; send the file in the form's field file.", "file")
        await form.sync()
    except MultipartParseError as error:
        raise InvalidParameter(f"The form cannot be read: {error}.") from None
    finally:
        form.close()
    return form


async def _feed(request: Request, parse: object, form: Form, max_file_bytes: int) -> None:
    assert callable(parse)
    chunks = request.stream()
    seen, ended = 0, False
    try:
        while not ended:
            async with asyncio.timeout(BODY_S):  # for each write, not for all: a large file takes its time
                async for chunk in chunks:
                    seen += len(chunk)
                    parse(chunk)
                    form.too_large |= seen > max_file_bytes + MAX_FRAME_BYTES
                    if form.too_large or len(form._waiting) >= _WRITE_BYTES:
                        break
                else:
                    ended = True
            if form.too_large:
                await discard_body(request)
                raise RequestRefused(
                    413,
                    f"The file has more than {max_file_bytes} bytes, this server's limit.",
                    "too_large",
                    "file",
                )
            await form.write()
    except TimeoutError:
        raise RequestRefused(408, f"The body stood still for {BODY_S:g} s.", "timeout") from None
    except ClientDisconnect:
        raise RequestRefused(499, "The client left before its request had arrived.") from None
