"""`octavo replay`: the same run, another run, no run."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.cli import main
from tests import fakes


@pytest.fixture
def step_log(tmp_path: Path) -> Path:
    path = tmp_path / "steps.log"
    engine = fakes.make_engine(log=str(path))
    fakes.run(
        engine, fakes.request("a", "a prompt", max_tokens=9), fakes.request("b", "another", max_tokens=5)
    )
    engine.close()
    return path


def test_a_recorded_run_gives_the_same_plans(capsys: pytest.CaptureFixture[str], step_log: Path) -> None:
    assert main.run(["replay", str(step_log)]) == 0
    assert capsys.readouterr().out.startswith("same: ")


def test_the_first_other_plan_is_told(capsys: pytest.CaptureFixture[str], step_log: Path) -> None:
    text = step_log.read_text()
    assert '"max_step_tokens":64' in text
    step_log.write_text(text.replace('"max_step_tokens":64', '"max_step_tokens":3'))
    assert main.run(["replay", str(step_log)]) == 1
    assert capsys.readouterr().out.startswith("different after 0 equal steps: step 0")


def test_a_log_without_steps_is_not_the_same_as_anything(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "steps.log"
    fakes.make_engine(log=str(path)).close()
    assert main.run(["replay", str(path)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "no steps" in shown.err and str(path) in shown.err


def test_each_run_is_told(capsys: pytest.CaptureFixture[str], step_log: Path) -> None:
    lines = step_log.read_bytes().splitlines(keepends=True)
    last = max(i for i, line in enumerate(lines) if b'"type":"commit"' in line)
    step_log.write_bytes(b"".join(lines[:last]) + lines[last][:9])  # its engine died
    fakes.make_engine(log=str(step_log)).close()
    assert main.run(["replay", str(step_log)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("run 1 of 2: same: ")
    assert first.endswith("was launched and never finished; the last line is cut off")
    assert second == "run 2 of 2: no steps"


@pytest.mark.parametrize("content", [None, b"", b"\x00\xff", b'{"a": 1}\n'])
def test_what_is_no_log_is_an_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "steps.log"
    if content is not None:
        path.write_bytes(content)
    assert main.run(["replay", str(path)]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: ")
    assert str(path) in shown
    assert shown.count("\n") == 1
