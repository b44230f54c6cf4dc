"""`octavo route` as it is typed."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from octavo.cli.main import run
from tests.routing.samples import made_labels, write_csv


def test_a_starting_policy_decides(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["route", "decide", "What is the capital of Peru?"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert told.startswith("small: starting policy 'factual'") and "decided in" in told
    assert run(["route", "decide", "Mend my essay.", "--policy", "essay", "--threshold", "-1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["decision"]["tier"] == "large"


def test_a_prompt_may_come_from_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"def f(x): return x\n")))
    assert run(["route", "decide", "-"]) == 0
    assert "large: abstains" in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"na\xefve")))
    assert run(["route", "decide", "-"]) == 2
    assert "no UTF-8 text (its byte 2 is 0xef)" in capsys.readouterr().err
    monkeypatch.setattr("octavo.cli.route_run.MAX_PROMPT_BYTES", 7)  # within the second letter é
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("Un été, né".encode())))
    assert run(["route", "decide", "-"]) == 0


@pytest.mark.slow
def test_train_evaluate_calibrate_decide(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    labels = str(write_csv(tmp_path / "labels.csv", made_labels(500), costs=(0.001, 0.01)))
    policy = str(tmp_path / "policy.npz")
    assert run(["route", "train", labels, "--out", policy, "--embedding", "none", "--seed", "3"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "tiers small, large; learnt from" in told and "sent to large" in told
    assert run(["route", "evaluate", labels, "--policy", policy]) == 0
    told = " ".join(capsys.readouterr().out.split())
    for words in ("rows that the policy was not trained on", "plain TF-IDF", "random mix", "oracle", "APGR over",
                  "the best single tier is large", "easy", "hard", "chosen beforehand"):  # fmt: skip
        assert words in told
    logs = str(write_csv(tmp_path / "logs.csv", made_labels(600, seed=5), costs=(0.001, 0.01)))
    changed = str(tmp_path / "changed.npz")
    assert run(["route", "calibrate", logs, "--policy", policy, "--quality", "0.9", "--out", changed]) == 0
    told = " ".join(capsys.readouterr().out.split())
    for words in ("PGR", "a random mix", "written to", "APGR over a random mix"):
        assert words in told
    line = ["route", "calibrate", logs, "--policy", policy, "--budget", "$20/day"]
    assert run([*line, "--requests-per-day", "4000", "--careful", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["calibrated"]["cost"]["value"] <= 0.005
    assert [round(point["share"], 1) for point in found["curve"]] == [
        round(0.1 * step, 1) for step in range(11)
    ]
    assert found["threshold"] == found["calibrated"]["threshold"]["high"]
    assert run(line) == 2
    assert "--requests-per-day" in capsys.readouterr().err
    assert run(["route", "decide", "what is the tensor of treaty and kernel?", "--policy", changed]) == 0
    assert "decided in" in capsys.readouterr().out
    assert run(["route", "calibrate", labels, "--policy", policy, "--quality", "1.4"]) == 2
    assert "no threshold reaches that" in capsys.readouterr().err
    other = str(write_csv(tmp_path / "other.csv", made_labels(200)))
    assert run(["route", "evaluate", other, "--policy", policy, "--tiers", "large,small"]) == 2
    assert "name the same in the same order" in capsys.readouterr().err
    assert (
        run(["route", "evaluate", labels, "--embedding", "none", "--seeds", "2", "--no-plain", "--json"]) == 0
    )
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["decide", " "], "The prompt is empty"),
        (["decide", "x", "--policy", "none.npz"], "none.npz', which is no file"),
        (["decide", "x", "--threshold", "nan"], "--threshold is nan"),
        (["train", "none.csv"], "none.csv cannot be read"),
        (["train", "LABELS", "--tiers", "small,huge"], "no column 'huge'"),
        (["train", "LABELS", "--prompt-column", "question"], "no column 'question'"),
        (["train", "LABELS", "--out", "none/policy.npz"], "there is no folder"),
        (["train", "LABELS", "--prices", "small=1"], "no price for tier 'large'"),
        (["train", "LABELS", "--prices", "small=1,large=2,huge=3"], "names the tier 'huge'"),
        (["train", "LABELS", "--prices", "small"], "write NAME=MONEY"),
        (
            ["train", "LABELS", "--embedding", "none", "--test-share", "0.5"],
            "--test-share 0.5 keeps the others",
        ),
        (["calibrate", "LABELS", "--policy", "none.npz"], "either --quality or --budget"),
        (["calibrate", "LABELS", "--policy", "none.npz", "--quality", "0.9"], "none.npz cannot be read"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    line: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    labels = str(write_csv(tmp_path / "labels.csv", made_labels(120)))
    assert run(["route", *(labels if word == "LABELS" else word for word in line)]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
