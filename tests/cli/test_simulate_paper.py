"""`octavo simulate --paper` as its user types it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from octavo.cli.main import run
from octavo.simulation.papers.table import Result


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--paper", "orka"], "paper 'orka' is unknown; did you mean orca?"),
        (["--paper", "orca", "--workload", "chat"], "Give either"),
        (["--workload", "chat", "--quick"], "--quick is for --paper"),
        (["--paper", "orca", "-o", "same", "--html", "same"], "one would overwrite the other"),
    ],
)
def test_bad_input_is_one_sentence_before_anything_runs(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["simulate", *words]) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.startswith("error: ") and error.count("\n") == 1 and message in error


@pytest.mark.slow
def test_a_paper_gives_a_table_reasons_a_result_and_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result, page = tmp_path / "orca.json", tmp_path / "orca.html"
    assert run(["simulate", "--paper", "orca", "--quick", "-o", str(result), "--html", str(page)]) == 0
    out = capsys.readouterr().out
    for words in ("published", "36.90×", "Orca over static", "Not modelled", "few requests", "abstract"):
        assert words in out
    made = msgspec.json.decode(result.read_bytes(), type=Result)
    assert made.quick and made.rows
    assert "<html" in page.read_text()
