"""The steps of a simulated run: on a terminal, in a page, in a file."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from octavo.bench.record import Record
from octavo.cli.main import run
from octavo.telemetry.timeline import Step
from tests.charts import test_browser

LOAD = [
    "simulate",
    "--workload",
    "rag",
    "--requests",
    "30",
    "--hardware",
    "l4",
    "--weight-bits",
    "8",
    "--rate",
    "1",
]


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def rows(out: str) -> dict[str, str]:
    return dict(re.findall(r"^ *(request \d+)  ([PdD.wx ]+)$", out, re.MULTILINE))


def test_a_stall_is_seen_with_whole_prompts_first_and_not_with_chunks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run([*LOAD, "--policy", "prefill-first", "--gantt", "stall"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"The longest stall: .* s at .*computed while \d+ streams\s+waited\.", out)
    assert any("P...." in line for line in rows(out).values())
    assert run([*LOAD, "--policy", "stall-free", "--gantt", "stall"]) == 0
    out = capsys.readouterr().out
    assert "No stream waited for others longer than for a step" in out
    assert not any("d." in line for line in rows(out).values()) and any(
        "P" in line for line in rows(out).values()
    )


def test_the_page_and_the_files_hold_the_steps_and_the_record_is_as_without(tmp_path: Path) -> None:
    page, lines, trace = tmp_path / "run.html", tmp_path / "steps.jsonl", tmp_path / "steps.json"
    with_, without = tmp_path / "a.json", tmp_path / "b.json"
    assert run([*LOAD, "--html", str(page), "--steps", str(lines), "-o", str(with_)]) == 0
    assert run([*LOAD, "-o", str(without)]) == 0
    assert with_.read_bytes() == without.read_bytes()
    text = page.read_text()
    assert "held tokens while steps ran" in text and "Tokens in a step" in text
    assert "Step by step" in text and "How long each sequence did what" in text and len(text) < 400_000
    steps = [msgspec.json.decode(line, type=Step) for line in lines.read_bytes().splitlines()]
    assert [one.number for one in steps] == list(range(len(steps)))
    answered = Record.read(with_).runs[0].exchanges
    assert sum(len(one.ended) for one in steps) == len(answered)
    assert steps[-1].end_us == max(one.end_us for one in answered)
    assert run([*LOAD, "--steps", str(trace), "--gantt", "5:6"]) == 0
    events = msgspec.json.decode(trace.read_bytes())["traceEvents"]
    begins = [one["ts"] for one in events if one.get("cat") == "step"]
    assert begins == [one.begin_us for one in steps if 5_000_000 <= one.begin_us < 6_000_000]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gantt", "stal"], "--gantt is 'stal'; it must be `stall`, or two times"),
        (["--gantt", "5:4"], "the earlier one first"),
        (["--gantt", "nan:4"], "the earlier one first"),
        (["--steps", "same", "-o", "same"], "one would overwrite the other"),
        (["--steps", "/no/such/folder/steps.json"], "cannot be written"),
    ],
)
def test_bad_input_is_one_sentence(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*LOAD, *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and message in error


def test_a_time_without_steps_and_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*LOAD, "--gantt", "9000:9001"]) == 0
    assert "No step begins in this time" in capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "50")
    assert run([*LOAD, "--gantt", "stall"]) == 0
    assert {len(line) <= 38 for line in rows(capsys.readouterr().out).values()} == {True}


@pytest.mark.slow
@pytest.mark.skipif(test_browser.BROWSER is None, reason="no chromium is installed")
def test_a_browser_draws_the_steps_and_refuses_nothing(tmp_path: Path) -> None:
    page = tmp_path / "run.html"
    assert run([*LOAD, "--policy", "prefill-first", "--html", str(page)]) == 0
    done = test_browser.browse(page, "--dump-dom")
    assert not re.findall(r"CONSOLE.*", done.stderr)
    assert re.search(r"Step by step.*?<canvas ", done.stdout, re.DOTALL)
