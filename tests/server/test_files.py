"""/v1/files over HTTP: OpenAI's objects, whole contents, forms that are wrong, and whose files they are."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest

from tests.server.conftest import Server


@pytest.fixture(scope="module")
def server(tiny_engine: dict[str, Any]) -> Iterator[Server]:
    """One with two keys."""
    server = Server(tiny_engine, access={"api_keys": ["one", "two"]})
    server.client.headers["authorization"] = "Bearer one"
    yield server
    assert server.stop() == 0


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with server.openai(api_key="one") as client:
        yield client


def _contents(server: Server) -> set[str]:
    folder = server.data / "files"
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def _form(*parts: tuple[str, bytes], end: bytes = b"--B--\r\n") -> bytes:
    heads = (
        b"--B\r\ncontent-disposition: " + head.encode() + b"\r\n\r\n" + data + b"\r\n" for head, data in parts
    )
    return b"".join(heads) + end


PURPOSE = ('form-data; name="purpose"', b"user_data")
FILE = ('form-data; name="file"; filename="a"', b"x")


def _send(server: Server, body: bytes, kind: str = "multipart/form-data; boundary=B") -> httpx2.Response:
    return server.client.post("/v1/files", content=body, headers={"content-type": kind})


def test_a_file_from_upload_to_removal(server: Server, client: openai.OpenAI) -> None:
    data = os.urandom(3 << 20)
    before = int(time.time())
    made = client.files.create(file=("ä/../b.bin", data), purpose="user_data")
    assert made.id.startswith("file-") and made.created_at >= before
    shown = server.client.get(f"/v1/files/{made.id}").json()
    assert shown == {
        "id": made.id,
        "object": "file",
        "bytes": len(data),
        "created_at": made.created_at,
        "filename": "ä/../b.bin",
        "purpose": "user_data",
        "status": "processed",
        "expires_at": None,
    }
    assert client.files.content(made.id).read() == data
    reply = server.client.get(f"/v1/files/{made.id}/content")
    assert reply.headers["content-type"] == "application/octet-stream"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert "filename*=utf-8''%C3%A4%2F..%2Fb.bin" in reply.headers["content-disposition"]
    assert _contents(server) >= {made.id}
    assert client.files.delete(made.id).deleted
    assert made.id not in _contents(server)
    for ask in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError, match="There is no file"):
            ask(made.id)


def test_lists_have_pages(client: openai.OpenAI) -> None:
    made = [client.files.create(file=(str(i), b"x"), purpose="vision").id for i in range(4)]
    other = client.files.create(file=("o", b""), purpose="evals")
    assert other.bytes == 0
    assert [one.id for one in client.files.list(purpose="vision")] == made[::-1]
    page = client.files.list(purpose="vision", limit=3, order="asc")
    assert [one.id for one in page.data] == made[:3] and page.has_more
    assert [
        one.id for one in client.files.list(purpose="vision", limit=3, order="asc", after=made[2])
    ] == made[3:]
    assert [one.id for one in client.files.list(limit=2)][:2] == [other.id, made[3]]  # goes on over all pages
    wrong: Any
    for wrong in ({"limit": 0}, {"limit": 10_001}, {"after": "file-x"}, {"order": "up"}):
        with pytest.raises(openai.BadRequestError) as refused:
            client.files.list(**wrong)
        assert refused.value.param == next(iter(wrong))


def test_a_file_lives_as_long_as_it_was_told(client: openai.OpenAI) -> None:
    after: Any = {"anchor": "created_at", "seconds": 3600}
    made = client.files.create(file=("a", b"x"), purpose="user_data", expires_after=after)
    assert made.expires_at == made.created_at + 3600
    batch = client.files.create(file=("a", b"x"), purpose="batch")
    assert batch.expires_at == batch.created_at + 30 * 24 * 3600
    for wrong in ({"anchor": "now", "seconds": 3600}, {"anchor": "created_at", "seconds": 5}):
        with pytest.raises(openai.BadRequestError, match="expires_after"):
            client.files.create(file=("a", b"x"), purpose="user_data", expires_after=wrong)  # type: ignore[arg-type]


def test_what_is_another_s_is_not_there(server: Server, client: openai.OpenAI) -> None:
    mine = client.files.create(file=("a", b"secret"), purpose="user_data")
    with server.openai(api_key="two") as other:
        theirs = other.files.create(file=("b", b"x"), purpose="user_data")
        for ask in (other.files.retrieve, other.files.content, other.files.delete):
            with pytest.raises(openai.NotFoundError):
                ask(mine.id)
        assert [one.id for one in other.files.list()] == [theirs.id]
        with pytest.raises(openai.BadRequestError):
            other.files.list(after=mine.id)
    assert client.files.content(mine.id).read() == b"secret"
    assert theirs.id not in [one.id for one in client.files.list()]
    assert server.client.get(f"/v1/files/{mine.id}", headers={"authorization": ""}).status_code == 401


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        (_form(FILE), "purpose", "missing"),
        (_form(PURPOSE), "file", "missing"),
        (_form(FILE, ('form-data; name="purpose"', b"fun")), "purpose", "'fun'"),
        (_form(PURPOSE, ('form-data; name="file"', b"x")), "file", "plain field"),
        (_form(PURPOSE, FILE, FILE), "file", "twice"),
        (_form(PURPOSE, PURPOSE, FILE), "purpose", "twice"),
        (_form(PURPOSE, ('form-data; name="other"; filename="a"', b"x")), "other", "only the field file"),
        (_form(PURPOSE, ("form-data", b"x")), None, "has no name"),
        (_form(PURPOSE, FILE, end=b""), None, "ends early"),
        (_form(('form-data; name="purpose"', b"x" * 5000)), "purpose", "4096"),
        (_form(*[(f'form-data; name="{i}"', b"") for i in range(17)]), None, "more than 16 parts"),
        (b"no form", None, "cannot be read"),
        (b"", None, "ends early"),
    ],
)
def test_a_form_that_is_wrong_leaves_nothing(
    server: Server, body: bytes, param: str | None, words: str
) -> None:
    before = _contents(server)
    reply = _send(server, body)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["param"] == param and words in error["message"]
    assert _contents(server) == before


def test_other_kinds_of_bodies_are_refused(server: Server) -> None:
    for kind in ("application/json", "multipart/form-data", "multipart/mixed; boundary=B"):
        assert _send(server, _form(PURPOSE, FILE), kind).status_code == 415
    good = _send(server, _form(FILE, PURPOSE, ('form-data; name="fun"', b"x")))  # the order does not matter
    assert good.status_code == 200 and good.json()["bytes"] == 1


def test_a_client_that_leaves_in_the_middle_leaves_nothing(server: Server) -> None:
    before = _contents(server)

    def half() -> Iterator[bytes]:
        yield _form(PURPOSE, FILE, end=b"") + b"--B\r\n"
        yield b"x" * 100
        raise KeyError

    with pytest.raises(KeyError):
        server.client.post(
            "/v1/files",
            content=half(),
            headers={"content-type": "multipart/form-data; boundary=B", "content-length": "100000"},
        )
    server.until(lambda: _contents(server) == before)


def test_no_path_of_a_request_reaches_the_disk(server: Server) -> None:
    (server.data / "secret").write_text("hidden words")
    for name in ("..%2Fsecret", "../secret", "..", "%2e%2e%2fsecret", "file-%00", "."):
        for end in ("", "/content"):
            reply = server.client.get(f"/v1/files/{name}{end}")
            assert reply.status_code in (200, 404) and "hidden" not in reply.text
            if reply.status_code == 200:  # a client makes /v1/files of it
                assert reply.json()["object"] == "list"
