"""Forms, however they are cut into pieces; the file's size is bounded on the way."""

from __future__ import annotations

import itertools
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from octavo.errors import ServerError
from octavo.protocol.errors import RequestRefused
from octavo.server import multipart
from octavo.server.multipart import MAX_FRAME_BYTES, Form, read_form

BODY = (
    b'--B\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--B\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\nContent-Type: x/y\r\n\r\n'
    b"\r\n--Bless\r\n\0\xff-\r\n--B--\r\n"
)
DATA = b"\r\n--Bless\r\n\0\xff-"


def request(chunks: list[bytes]) -> Request:
    left = list(chunks)

    async def receive() -> dict[str, Any]:
        if not left:
            return {"type": "http.request", "body": b"", "more_body": False}
        return {"type": "http.request", "body": left.pop(0), "more_body": True}

    headers = [(b"content-type", b"multipart/form-data; boundary=B")]
    return Request({"type": "http", "method": "POST", "headers": headers}, receive)


async def read(folder: Path, chunks: list[bytes], limit: int = 1000) -> tuple[Form, bytes]:
    path = folder / uuid.uuid4().hex
    form = await read_form(request(chunks), path, limit)
    return form, path.read_bytes()


@given(cuts=st.sets(st.integers(1, len(BODY) - 1)))
async def test_pieces_of_a_form_are_the_form(
    tmp_path_factory: pytest.TempPathFactory, cuts: set[int]
) -> None:
    places = [0, *sorted(cuts), len(BODY)]
    chunks = [BODY[a:b] for a, b in itertools.pairwise(places)]
    form, data = await read(tmp_path_factory.getbasetemp(), chunks)
    assert (form.fields, form.filename, form.nbytes, data) == (
        {"purpose": "batch"},
        "a.jsonl",
        len(DATA),
        DATA,
    )


async def test_much_is_written_in_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multipart, "_WRITE_BYTES", 4)
    form, data = await read(tmp_path, [BODY[i : i + 1] for i in range(len(BODY))])
    assert data == DATA and form.nbytes == len(DATA)


async def test_a_file_of_the_limit_is_taken_and_one_more_byte_is_not(tmp_path: Path) -> None:
    assert (await read(tmp_path, [BODY], len(DATA)))[1] == DATA
    with pytest.raises(RequestRefused, match=f"more than {len(DATA) - 1} bytes") as refused:
        await read(tmp_path, [BODY], len(DATA) - 1)
    assert refused.value.status == 413


async def test_what_surrounds_the_file_is_bounded_too(tmp_path: Path) -> None:
    with pytest.raises(RequestRefused) as refused:
        await read(tmp_path, [b"\r\n" * 1000] * (MAX_FRAME_BYTES // 2000 + 2), 10)
    assert refused.value.status == 413


async def test_a_disk_that_refuses_is_named(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"gone/x' cannot be used: No such file or directory; .*--data-dir"):
        await read_form(request([BODY]), tmp_path / "gone" / "x", 1000)
