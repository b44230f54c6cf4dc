"""Downloading: whole, resumed, cut, wrong."""

from __future__ import annotations

import hashlib
import random
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.errors import ModelError
from octavo.models.download import Opener, download
from tests.models.http_stub import Answer, Server

BODY = random.Random(0).randbytes(1_000_000)
SHA256 = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server({"/f": Answer(BODY)}) as server:
        yield server


@pytest.fixture
def opener() -> Opener:
    return Opener(timeout_s=10, agent="test")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "f.bin"


def test_whole(server: Server, opener: Opener, target: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    download(opener, f"{server.url}/f", target, sha256=SHA256, progress=lambda *args: seen.append(args))
    assert target.read_bytes() == BODY
    assert not target.with_name("f.bin.part").exists()
    assert [done for done, _, _ in seen] == sorted({done for done, _, _ in seen})
    assert seen[-1] == (len(BODY), len(BODY), "downloading f.bin")
    assert server.requests == [("GET", "/f", None)]


def test_a_cut_connection_is_resumed(server: Server, opener: Opener, target: Path) -> None:
    server.cuts = [300_000, 0, 1]
    download(opener, f"{server.url}/f", target, sha256=SHA256)
    assert target.read_bytes() == BODY
    assert [wanted for _, _, wanted in server.requests] == [
        None,
        "bytes=300000-",
        "bytes=300000-",
        "bytes=300001-",
    ]


def test_an_earlier_part_is_resumed(server: Server, opener: Opener, target: Path) -> None:
    target.with_name("f.bin.part").write_bytes(BODY[:999_999])
    seen: list[int] = []
    download(opener, f"{server.url}/f", target, sha256=SHA256, progress=lambda done, *_: seen.append(done))
    assert target.read_bytes() == BODY
    assert seen == [1_000_000]


def test_a_whole_part_needs_no_bytes(server: Server, opener: Opener, target: Path) -> None:
    target.with_name("f.bin.part").write_bytes(BODY)
    download(opener, f"{server.url}/f", target, sha256=SHA256)
    assert target.read_bytes() == BODY
    assert len(server.requests) == 1


@pytest.mark.parametrize("part", [b"other" * 10, b"x" * 2_000_000])
def test_a_part_of_another_file_is_replaced(
    server: Server, opener: Opener, target: Path, part: bytes
) -> None:
    target.with_name("f.bin.part").write_bytes(part)
    download(opener, f"{server.url}/f", target, sha256=SHA256)
    assert target.read_bytes() == BODY


def test_a_server_without_ranges_starts_over(server: Server, opener: Opener, target: Path) -> None:
    server.answers["/f"] = Answer(BODY, ranges=False)
    target.with_name("f.bin.part").write_bytes(BODY[:10])
    download(opener, f"{server.url}/f", target, sha256=SHA256)
    assert target.read_bytes() == BODY


def test_wrong_bytes_are_removed(server: Server, opener: Opener, target: Path) -> None:
    with pytest.raises(ModelError, match=f"sha256 {SHA256}, it should have {'0' * 64}; the file is removed"):
        download(opener, f"{server.url}/f", target, sha256="0" * 64)
    assert not list(target.parent.iterdir())


def test_no_progress_ends_with_what_came_kept(server: Server, opener: Opener, target: Path) -> None:
    server.cuts = [100] + [0] * 50
    with pytest.raises(ConnectionError, match="5 connections in a row brought nothing"):
        download(opener, f"{server.url}/f", target, sha256=SHA256)
    assert target.with_name("f.bin.part").read_bytes() == BODY[:100]
    assert len(server.requests) == 6


def test_a_refusal_is_not_repeated(server: Server, opener: Opener, target: Path) -> None:
    with pytest.raises(urllib.error.HTTPError):
        download(opener, f"{server.url}/none", target, sha256=SHA256)
    assert len(server.requests) == 1


def test_a_range_that_was_not_asked_for(server: Server, opener: Opener, target: Path) -> None:
    shifted = Answer(BODY[1:], 206, (("Content-Range", f"bytes 1-{len(BODY) - 1}/{len(BODY)}"),))
    server.answers["/f"] = shifted
    target.with_name("f.bin.part").write_bytes(BODY[:10])
    with pytest.raises(ConnectionError, match="asked for bytes from 10, got bytes 1-"):
        download(opener, f"{server.url}/f", target, sha256=SHA256)
