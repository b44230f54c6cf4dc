"""`octavo simulate` as its user types it."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.bench.record import Record
from octavo.cli.main import run
from octavo.simulation.calibrated import saved_at
from tests.simulation.test_calibrated import CALIBRATION


def test_the_tutorial_prints_the_lesson_s_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "--preset", "tutorial"]) == 0
    out = capsys.readouterr().out
    for figure in ("60.82 s", "1160.1 tok/s", "5.48 s", "873.9 tok/s", "28.72 s", "166.8 tok/s", "29.97 s"):
        assert figure in out
    assert "charged" in out


def test_a_workload_gives_facts_a_summary_a_range_a_record_and_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record, page = tmp_path / "run.json.gz", tmp_path / "run.html"
    command = ["simulate", "--workload", "chat", "--requests", "40", "--hardware", "h100", "--rate", "3"]
    command += ["--slo", "ttft_p99<1s"]
    assert run([*command, "-o", str(record), "--html", str(page)]) == 0
    out = capsys.readouterr().out
    for words in ("128 KiB a token", "critical batch", "TTFT", "uncalibrated", "ttft_p99<1s"):
        assert words in out
    [only] = Record.read(record).runs
    assert len(only.exchanges) == 40 and all(one.error is None for one in only.exchanges)
    assert "<html" in page.read_text()
    again = tmp_path / "again.json.gz"
    assert run([*command, "-o", str(again)]) == 0
    assert again.read_bytes() == record.read_bytes()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Give either --workload or --preset tutorial or --paper"),
        (["--workload", "chat", "--preset", "tutorial"], "Give either"),
        (["--workload", "chat", "--hardware", "h1000"], "hardware 'h1000' is unknown; did you mean h100"),
        (["--workload", "chat", "--model", "llama3-8b"], "did you mean llama-3-8b"),
        (["--workload", "chat", "--model", "llama-3-70b"], "take fewer bits, more accelerators or others"),
        (["--workload", "chat", "--tensor-parallel", "3"], "must divide the model's 32 heads"),
        (["--workload", "nonsense"], "nonsense"),
        (["--workload", "chat", "--compare-naive", "--replicas", "2"], "a table about one server"),
        (
            ["--workload", "agent", "--model", "opt-13b", "--requests", "40"],
            "None of the workload's 40 requests can",
        ),
        (
            ["--workload", "rag", "--model", "opt-13b", "--requests", "20"],
            "5 of the workload's 20 requests can never",
        ),
        (["--workload", "chat", "--tbt-target", "2ms"], "but a step with one token takes 10.8 ms"),
        (["--workload", "chat", "--max-step-tokens", "64"], "less than max_running 256"),
        (
            ["--workload", "chat", "--max-step-tokens", "8", "--max-running", "4"],
            "less than one block of 16 tokens",
        ),
        (["--workload", "chat", "--beam-width", "2", "--allocator", "reserved-max"], "--allocator paged"),
        (["--workload", "chat", "--model", "falcon-180b", "--hardware", "laptop-cpu"], "weights take"),
        (
            [
                "--workload",
                "chat",
                "--hardware",
                "l4",
                "--memory-utilization",
                "0.68",
                "--max-model-len",
                "4096",
            ],
            "max_model_len is 4096, but the KV memory holds",
        ),
        (["--workload", "batch", "--cv", "3"], "no single rate"),
        (["--workload", "chat", "--compare-naive", "--n", "2"], "leave --n and --beam-width out"),
        (["--workload", "chat", "--compare-naive", "--speculation", "0.5"], "leave --speculation out"),
        (["--workload", "chat", "--speculation", "ngram"], "neither off, nor a share of tokens such as 0.7"),
        (["--workload", "chat", "--draft-model", "smollm2-135m"], "and speculation is off"),
        (
            ["--workload", "chat", "--speculation", "0.5", "--draft-model", "smolm"],
            "did you mean smollm2-135m",
        ),
        (["--workload", "chat", "--speculation-tokens", "3"], "and speculation is off"),
        (["--workload", "chat", "--n", "3", "--beam-width", "2"], "beam_width is 2, less than n, which is 3"),
        (["--workload", "chat", "--n", "200"], "n is 200; it must lie in 1 … 128"),
        (["--workload", "chat", "-o", "same", "--html", "same"], "one would overwrite the other"),
        (["--workload", "chat", "--slo", "ttft_p98<1s"], "ttft"),
    ],
)
def test_bad_input_is_one_sentence(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["simulate", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and message in error


def test_a_target_that_is_missed_and_a_path_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["simulate", "--workload", "chat", "--requests", "20", "--hardware", "t4", "--rate", "3"]
    command += ["--weight-bits", "8"]
    assert run([*command, "--slo", "ttft_p99<1ms", "-o", str(tmp_path / "a.json")]) == 1
    assert "not met" in capsys.readouterr().out
    assert Record.read(tmp_path / "a.json").options["slo"] == "ttft_p99<1ms"
    assert run([*command, "-o", str(tmp_path / "no" / "a.json")]) == 2
    out, error = capsys.readouterr()
    assert out == "" and "a.json cannot be written" in error


def test_several_answers_and_beams_are_in_the_record(tmp_path: Path) -> None:
    command = ["simulate", "--workload", "chat", "--requests", "5", "--rate", "3"]
    tokens = {}
    for name, asked in {"once": [], "four": ["--n", "4"], "beams": ["--beam-width", "4", "--n", "2"]}.items():
        path = tmp_path / f"{name}.json"
        assert run([*command, *asked, "-o", str(path)]) == 0
        record = Record.read(path)
        tokens[name] = sum(one.output_tokens or 0 for one in record.runs[0].exchanges)
        assert record.options["n"] == (int(asked[-1]) if asked else 1)
    assert tokens["four"] == 4 * tokens["once"] and tokens["beams"] == 2 * tokens["once"] > 0


def test_speculation_is_faster_where_few_run_and_gives_the_same_tokens(tmp_path: Path) -> None:
    command = ["simulate", "--workload", "chat", "--requests", "6", "--rate", "0.05"]
    seen = {}
    for name, asked in {
        "off": [],
        "drawn": ["--speculation", "0.7"],
        "fixed": ["--speculation", "0.7", "--speculation-tokens", "4"],
        "model": ["--speculation", "0.7", "--draft-model", "smollm2-135m"],
    }.items():
        path = tmp_path / f"{name}.json"
        assert run([*command, *asked, "-o", str(path)]) == 0
        exchanges = Record.read(path).runs[0].exchanges
        seen[name] = (
            sum(one.output_tokens or 0 for one in exchanges),
            sum(len(one.chunks) for one in exchanges),
        )
    assert len({tokens for tokens, _ in seen.values()}) == 1
    assert all(seen[name][1] < 0.7 * seen["off"][1] for name in ("drawn", "fixed", "model"))


_BURSTS = """
requests = 120
arrivals = { kind = "gamma", rate = 1, cv = 10 }
input = { kind = "lognormal", parts = [{ median = 60, sigma = 0.8 }], max = 500 }
output = { kind = "lognormal", parts = [{ median = 400, sigma = 0.7 }], max = 1500 }
"""


def test_a_naive_engine_dies_of_bursts_the_more_the_fuller_and_the_paged_one_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bursts = tmp_path / "bursts.toml"
    bursts.write_text(_BURSTS)
    command = ["simulate", "--workload", str(bursts), "--model", "opt-13b", "--hardware", "a100-40"]
    assert run([*command, "--compare-naive"]) == 0
    rows = [
        line.split() for line in capsys.readouterr().out.splitlines() if line[:4] in ("80% ", "90% ", "95% ")
    ]
    lost = [int(row[2].strip(",")) for row in rows]
    paged = [(row[7], row[8]) for row in rows]
    assert len(rows) == 3 and lost == sorted(lost) and lost[0] < lost[2]
    assert paged == [("0,", "0.0%")] * 3


@pytest.mark.parametrize(
    "knobs",
    [
        ["--policy", "static", "--allocator", "reserved-max", "--no-prefix-cache"],
        ["--policy", "continuous", "--allocator", "reserved-oracle", "--n", "2"],
        ["--policy", "prefill-first", "--speculation", "0.6", "--block-size", "32"],
        ["--tbt-target", "30ms", "--ttft-target", "1s", "--profile", "chat", "--priority-aging", "0"],
        ["--gpu-memory-utilization", "0.8", "--max-num-seqs", "16", "--max-num-batched-tokens", "512"],
    ],
)
def test_knobs_of_the_server_change_no_answer(
    knobs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.json"
    assert (
        run(["simulate", "--workload", "chat", "--requests", "10", "--rate", "2", *knobs, "-o", str(path)])
        == 0
    )
    record = Record.read(path)
    answers = 2 if "--n" in knobs else 1
    for one in record.runs[0].exchanges:
        assert one.error is None and one.output_tokens == answers * one.wanted_output
    if "--policy" in knobs:
        assert record.options["policy"] == knobs[1]


def test_requests_that_are_too_long_are_told_before_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["simulate", "--workload", "rag", "--requests", "20", "--model", "opt-13b"]
    assert run([*command, "--allow-refused"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "5 of 20 requests are refused, such as: The prompt has" in out and "answers are cut" in out


def test_the_catalogue_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "--hardware", "list", "--model", "list"]) == 0
    out = capsys.readouterr().out
    for name in ("a100-40", "mi300x", "laptop-cpu", "opt-175b", "falcon-180b", "smollm2-135m"):
        assert name in out
    assert run(["simulate", "--model", "list"]) == 0
    assert "a100-40" not in capsys.readouterr().out


def test_a_calibration_is_simulated_and_says_what_it_was_not_measured_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    path, record = tmp_path / "small.json", tmp_path / "run.json"
    CALIBRATION.write(path)
    command = ["simulate", "--workload", "voice", "--requests", "10"]
    command += ["--rate", "1", "--max-model-len", "512", "--max-running", "4"]
    assert run([*command, "--pace", str(path), "-o", str(record)]) in (0, 3)
    out = capsys.readouterr().out
    for words in (
        "abacus",
        "1.0% in the median, 5.0% at P95",
        "1 KiB a token",
        "more tokens than any that was measured",
    ):
        assert words in " ".join(out.split())
    assert "uncalibrated" not in out
    assert "calibrated on 2026-01-02" in (Record.read(record).server or "")
    assert run([*command, "--hardware", "here", "--model", "small"]) == 2
    assert "run octavo simulate --calibrate small first" in capsys.readouterr().err
    CALIBRATION.write(saved_at("small"))
    assert run([*command, "--hardware", "here", "--model", "small"]) in (0, 3)


def test_a_table_s_step_times_are_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("per_step_s = 0.01\ntokens = [0, 4, 512]\ntoken_s = [0, 0, 0.1]\n")
    assert (
        run(["simulate", "--workload", "chat", "--requests", "10", "--rate", "1", "--pace", str(path)]) == 0
    )
    out = capsys.readouterr().out
    assert "uncalibrated" not in out and "critical batch" not in out and "128 KiB a token" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--workload", "chat", "--pace", "none.json"], "none.json cannot be read"),
        (["--workload", "chat", "--calibrate", "smollm2"], "Give either"),
        (["--calibrate", "nonsense"], "nonsense"),
        (
            ["--workload", "chat", "--hardware", "here", "--model", "no"],
            "run octavo simulate --calibrate no first",
        ),
        (["--calibrate", "http://127.0.0.1:9"], "127.0.0.1:9"),
    ],
)
def test_a_pace_that_cannot_be_had_is_one_sentence(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["simulate", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and message in error


def test_options_of_the_catalogue_are_refused_beside_a_calibration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "small.json"
    CALIBRATION.write(path)
    command = ["simulate", "--workload", "chat", "--pace", str(path)]
    assert run([*command, "--weight-bits", "4"]) == 2
    assert "--weight-bits is about a machine of the catalogue" in capsys.readouterr().err
    assert run([*command, "--max-model-len", "9999"]) == 2
    assert "the server that was calibrated took 512" in capsys.readouterr().err
