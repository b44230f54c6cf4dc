"""`octavo pull`: where models come from as a user types them, progress, and what cannot be had."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.cli import main
from octavo.cli.progress import ByteProgress
from octavo.models.store import StoredModel


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))


def test_a_file_is_converted_once_and_its_folder_printed(
    capsys: pytest.CaptureFixture[str], tiny_model_path: Path
) -> None:
    assert main.run(["pull", str(tiny_model_path)]) == 0
    folder = Path(capsys.readouterr().out.removesuffix("\n"))
    assert StoredModel.load(folder).source == tiny_model_path
    written = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert main.run(["pull", str(tiny_model_path)]) == 0
    assert Path(capsys.readouterr().out.removesuffix("\n")) == folder
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == written


@pytest.mark.parametrize("model", ["nowhere/model.gguf", "no-such-alias", "hf:only-an-owner"])
def test_what_cannot_be_had_is_named(capsys: pytest.CaptureFixture[str], model: str) -> None:
    assert main.run(["pull", model]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: ")
    assert model.removeprefix("hf:") in shown


def test_no_network_is_the_machine_s_fault(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert main.run(["pull", "hf:a/b/c.gguf"]) == 1
    assert capsys.readouterr().err == (
        "error: 'hf:a/b/c.gguf' cannot be downloaded: the hub cannot be reached; check the network.\n"
    )


def test_a_file_that_is_no_model_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "text.gguf"
    path.write_text("not a model")
    assert main.run(["pull", str(path)]) == 2
    assert str(path) in capsys.readouterr().err


def test_without_a_terminal_each_piece_of_work_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with ByteProgress() as progress:
        for done in (0, 1, 2):
            progress(done * 10_000_000, 20_000_000, "downloading x")
        progress(0, 50_000_000, "packing x")
    assert capsys.readouterr().err == "downloading x (20 MB)\npacking x (50 MB)\n"


def test_short_work_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with ByteProgress() as progress:
        progress(0, 300, "hashing x")
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_bars(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    with ByteProgress() as progress:
        progress(0, 20_000_000, "downloading x")
        progress(20_000_000, 20_000_000, "downloading x")
    shown = capsys.readouterr().err
    assert "downloading x" in shown
    assert "20.0/20.0 MB" in shown
