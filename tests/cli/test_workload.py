"""`octavo workload`: what it prints and writes, and how it tells of errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.cli import main
from octavo.workload import load_workload, requests_of


def test_show_prints_rates_lengths_and_the_first_requests(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["workload", "show", "voice", "--requests", "60", "--first", "2"]) == 0
    shown = capsys.readouterr().out
    for words in (
        "voice: Spoken dialogues",
        "60 requests in",
        "gaps' CV",
        "blocks of 16 tokens",
        "p99",
        "at_s",
    ):
        assert words in shown
    assert shown.rstrip().count("\n") < 20


def test_show_as_json_is_what_the_requests_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main.run(["workload", "show", "chat", "--json", "--requests", "30", "--seed", "4", "--rate", "9"])
        == 0
    )
    shown = json.loads(capsys.readouterr().out)
    assert shown["workload"]["seed"] == 4 and shown["workload"]["arrivals"]["rate"] == 9
    assert shown["summary"]["requests"] == 30 and 0 < shown["summary"]["hit_rate"] < 1
    assert len(shown["first"]) == 5


def test_write_writes_every_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.jsonl"
    assert main.run(["workload", "write", "voice", "-o", str(file), "--requests", "20"]) == 0
    assert f"20 requests are in {file}." in capsys.readouterr().err
    made = list(requests_of(load_workload("voice")))[:20]
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["prompt"] for line in lines] == [request.token_ids() for request in made]
    assert main.run(["workload", "write", "voice", "--format", "mooncake", "--requests", "20"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["input_length"] for line in lines] == [request.input_tokens for request in made]
    own = tmp_path / "again.toml"
    own.write_text('trace = { file = "out.jsonl" }')
    assert main.run(["workload", "show", str(own), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["summary"]["requests"] == 20


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["show", "chatt"], "did you mean chat?"),
        (["show", "/no/such.toml"], "/no/such.toml"),
        (["show", "batch", "--rate", "2"], "of the kind closed"),
        (["write", "chat", "-o", "/no/such/folder/x"], "/no/such/folder"),
        (["show", "chat", "--seed", str(2**63)], "it must be below 2**63"),
    ],
)
def test_errors_are_one_line(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["workload", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and told in shown.err and shown.err.count("\n") == 1


def test_no_file_is_made_of_a_trace_that_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.csv").write_text("")
    own, out = tmp_path / "w.toml", tmp_path / "out"
    own.write_text('trace = { file = "t.csv" }')
    assert main.run(["workload", "write", str(own), "-o", str(out)]) == 2
    assert "t.csv is empty" in capsys.readouterr().err and not out.exists()
