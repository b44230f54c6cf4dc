"""Exit codes and the one line that tells an error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import octavo
from octavo.cli import main
from octavo.errors import EngineDied, ModelError, Overloaded, SettingsError


def _fails(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def broken(model: str) -> None:
        raise error

    monkeypatch.setattr("octavo.cli.pull.fetch", broken)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ModelError("no such model."), 2, "error: no such model."),
        (SettingsError("bad\nsettings."), 2, "error: bad settings."),
        (EngineDied("it died."), 1, "error: it died."),
        (Overloaded("too much."), 1, "error: too much."),
        (
            FileNotFoundError(2, "gone", "x.log"),
            2,
            "error: x.log: gone; check the path.",
        ),
        (
            PermissionError(13, "Permission denied", "x"),
            2,
            "error: x: Permission denied; check its permissions.",
        ),
        (OSError(5, "Input/output error", "x"), 1, "error: x: Input/output error."),
        (OSError(28, "No space left on device"), 1, "error: No space left on device."),
    ],
)
def test_an_error_is_one_line_and_says_whose_fault_it_is(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    code: int,
    line: str,
) -> None:
    _fails(monkeypatch, error)
    assert main.run(["pull", "m"]) == code
    shown = capsys.readouterr()
    assert shown.err == line + "\n"
    assert shown.out == ""


def test_a_fault_of_ours_names_itself_and_how_to_report_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _fails(monkeypatch, KeyError("q"))
    assert main.run(["pull", "m"]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("error: KeyError: 'q'")
    assert "OCTAVO_TRACEBACK=1" in shown
    assert shown.count("\n") == 1


def test_the_traceback_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    _fails(monkeypatch, KeyError("q"))
    monkeypatch.setenv("OCTAVO_TRACEBACK", "1")
    with pytest.raises(KeyError):
        main.run(["pull", "m"])


def test_an_interrupt_is_130_and_silent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _fails(monkeypatch, KeyboardInterrupt())
    assert main.run(["pull", "m"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["nonsense"], "nonsense"),
        (["serve", "--nonsense"], "--nonsense"),
        (["serve", "--port", "70000"], "70000"),
        (["serve", "--port", "x"], "--port"),
        (["serve", "--backend", "x"], "native"),
        (["serve", "--kv-memory", "2 apples"], "2 apples"),
        (["replay"], "log"),
    ],
)
def test_wrong_arguments_are_2_and_name_what_is_wrong(
    capsys: pytest.CaptureFixture[str], arguments: list[str], part: str
) -> None:
    assert main.run(arguments) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: ")
    assert part.lower() in shown.lower()
    assert "--help" in shown
    assert shown.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["serve", "--help"]])
def test_help_is_0(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert main.run(arguments) == 0
    assert "Usage: octavo" in capsys.readouterr().out


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--version"]) == 0
    assert capsys.readouterr().out == f"octavo {octavo.__version__}\n"


def _octavo(*arguments: str, stdout: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "octavo", *arguments]
    return subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True)


def test_the_module_is_the_command() -> None:
    process = _octavo("--version", stdout=subprocess.PIPE)
    assert process.communicate(timeout=60) == (f"octavo {octavo.__version__}\n", "")
    assert process.returncode == 0


def test_a_reader_that_left_is_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = _octavo("--version", stdout=writing)
    os.close(writing)
    assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 1


def test_an_output_that_takes_nothing_is_told_once() -> None:
    with Path("/dev/full").open("wb") as full:
        process = _octavo("--version", stdout=full.fileno())
        assert process.communicate(timeout=60)[1] == "error: No space left on device.\n"
    assert process.returncode == 1


def test_ctrl_c_while_modules_are_loaded_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = subprocess.run(
        [sys.executable, "-m", "octavo", "--help"],
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
