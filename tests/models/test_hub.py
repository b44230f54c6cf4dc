"""Files from the Hugging Face hub, whose protocol a server on the loopback interface speaks."""

from __future__ import annotations

import hashlib
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.errors import ModelError, ServerError
from octavo.models.hub import hub_file
from octavo.models.store import open_model
from tests.models.http_stub import Answer, Server

REF = "hf:some/model-GGUF/quants/tiny.Q4_1.gguf"
PATH = "/some/model-GGUF/resolve/main/quants/tiny.Q4_1.gguf"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def body(tiny_model_path: Path) -> bytes:
    return tiny_model_path.read_bytes()


@pytest.fixture
def hub(body: bytes, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    headers = (
        ("ETag", f'"{hashlib.sha256(body).hexdigest()}"'),
        ("X-Repo-Commit", COMMIT),
        ("Accept-Ranges", "bytes"),
    )
    with Server({PATH: Answer(body, 200, headers)}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def refusal(code: str, status: int) -> Answer:
    return Answer(b"", status, (("X-Error-Code", code), ("X-Error-Message", code)))


def test_a_file(hub: Server, body: bytes, tmp_path: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    path = hub_file(REF, tmp_path, lambda *args: seen.append(args))
    assert path.name == "tiny.Q4_1.gguf"
    assert path.read_bytes() == body
    assert seen[-1] == (len(body), len(body), "downloading quants/tiny.Q4_1.gguf")
    asked = len(hub.requests)
    assert hub_file(REF, tmp_path) == path
    assert len(hub.requests) == asked


def test_the_store_opens_it(hub: Server, tmp_path: Path) -> None:
    assert open_model(REF, cache=tmp_path, packed=False).spec.name == "tiny"
    assert ("GET", PATH, None) in hub.requests


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (refusal("EntryNotFound", 404), "has no file 'quants/tiny.Q4_1.gguf'"),
        (refusal("RepoNotFound", 401), "has no 'some/model-GGUF', or it is private"),
        (refusal("GatedRepo", 403), "open only to accounts that accepted its terms"),
        (Answer(b"", 404), "404.*check the name, HF_ENDPOINT and HF_TOKEN"),
    ],
)
def test_refusals(hub: Server, tmp_path: Path, answer: Answer, reason: str) -> None:
    hub.answers[PATH] = answer
    with pytest.raises(ModelError, match=reason):
        hub_file(REF, tmp_path)


def test_no_network_is_told_soon_and_once(
    hub: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def sleep(_: float) -> None:
        pytest.fail("it waits to try again")

    with Server() as gone:
        monkeypatch.setenv("HF_ENDPOINT", gone.url)
    monkeypatch.setattr("time.sleep", sleep)
    with pytest.raises(ServerError, match="the hub cannot be reached; check the network"):
        hub_file(REF, tmp_path)
    assert hub.requests == []
    assert capfd.readouterr() == ("", "")


def test_a_hub_that_fails_is_no_fault_of_the_name(
    hub: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    hub.answers[PATH] = Answer(b"", 503)
    with pytest.raises(ServerError, match=r"cannot be downloaded \(.*503.*; try again"):
        hub_file(REF, tmp_path)
    assert len(hub.requests) == 1
    assert capfd.readouterr() == ("", "")


def test_the_token_is_sent(hub: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub_file(REF, tmp_path)
    assert hub.tokens == {"Bearer hf_secret"}


def test_a_hub_that_is_silent_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "0.2")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(ServerError, match="the hub cannot be reached"):
            hub_file(REF, tmp_path)


def test_offline_by_the_user_s_wish(hub: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.is_offline_mode", lambda: True)
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE is set"):
        hub_file(REF, tmp_path)
    assert hub.requests == []


@pytest.mark.parametrize("ref", ["hf:", "hf:name/file.gguf", "hf:a/b/file.bin", "hf:a/b/../../c d.gguf"])
def test_what_is_no_reference(ref: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"write hf:owner/name/file\.gguf"):
        hub_file(ref, tmp_path)


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # makes the import fail
    with pytest.raises(ModelError, match=r"pip install 'octavo\[hub\]'"):
        hub_file(REF, tmp_path)
