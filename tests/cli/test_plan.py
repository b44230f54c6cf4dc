"""`octavo plan` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.cli.main import run
from tests.planning.test_here import calibration

SMALL = (
    "plan --model llama-3-8b -w chat --rate 3 --hardware rtx4090 --weight-bits 8 --tensor-parallel 1 "
    "--policies stall-free --max-step-tokens 2048 --max-running 256 --memory-utilization 0.9 --requests 40 --seeds 1 "
    "--workers 1"
)


@pytest.mark.slow
def test_a_plan_with_its_page_and_its_journal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page, journal = tmp_path / "p.html", tmp_path / "j.jsonl"
    line = [
        *SMALL.split(),
        "--slo",
        "ttft_p99<1s,itl_p99<60ms",
        "--hosted",
        "gpt-4.1-mini",
        "--journal",
        str(journal),
    ]
    assert run([*line, "--html", str(page)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    for words in ("the cheapest that meets ttft_p99<1s,itl_p99<60ms is", "octavo serve llama-3-8b --policy stall-free",
                  "What binds is", "this plan is cheaper from"):  # fmt: skip
        assert words in told
    html = page.read_text()
    assert "Cost and first token" in html and "A month by turns a day" in html and "http://" not in html
    assert run([*line, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["simulations"] == 0 and plan["taken_over"] > 3
    assert plan["best"]["met"] and plan["hosted"]["hosted"][0]["name"] == "gpt-4.1-mini"


def test_what_nothing_meets_has_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SMALL.split(), "--slo", "itl_p99<1ms"]) == 1
    assert "infeasible even for one request at a time" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--slo", "ttft_p9<1s"], "ttft_p9"),
        (["--slo", "ttft_p99<1s", "--hardware", "rtx4900"], "did you mean rtx4090"),
        (["--slo", "ttft_p99<1s", "--model", "llama-3-8"], "did you mean"),
        (["--slo", "ttft_p99<1s", "--policies", "stallfree"], "did you mean stall-free"),
        (["--slo", "ttft_p99<1s", "--tensor-parallel", "1.5"], "whole numbers"),
        (["--slo", "ttft_p99<1s", "--memory-utilization", "1.5"], "at most 1"),
        (["--slo", "ttft_p99<1s", "-w", "caht"], "did you mean chat"),
        (["--slo", "ttft_p99<1s", "--hosted", "gpt"], "hosted model 'gpt' is unknown"),
        (["--slo", "ttft_p99<1s", "--speculation", "of"], "neither off, nor a share"),
        (["--slo", "ttft_p99<1s", "--draft-model", "llama-7b"], "give its acceptance too"),
        (["--slo", "ttft_p99<1s", "--mtbf", "0"], "--mtbf is 0"),
        (["--slo", "ttft_p99<1s", "--kv-memory", "1GiB"], "about a calibrated machine"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(
    more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*SMALL.split(), *more]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


HERE = "plan --model paper -w chat --rate 0.2 --slo ttft_p95<20s,tpot_p95<100ms --requests 30 --seeds 1 --workers 1 "


@pytest.mark.slow
def test_a_plan_for_a_machine_that_was_measured(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    paces = [tmp_path / "one.json", tmp_path / "two.json"]
    for threads, path in enumerate(paces, 1):
        calibration(threads).write(path)
    page = tmp_path / "p.html"
    line = [*HERE.split(), "--pace", str(paces[1]), "--pace", str(paces[0]), "--html", str(page)]
    assert run(line) == 0
    told = " ".join(capsys.readouterr().out.split())
    for words in (
        "the least of this machine that meets",
        "1 thread and ",
        "--kv-memory",
        "may be off by 10 %",
        "B* =",
    ):
        assert words in told
    assert "MiB for K and V" in page.read_text()
    assert run([*line, "--json"]) == 0
    again, more = json.loads(capsys.readouterr().out), run([*line, "--json"])
    assert more == 0 and json.loads(capsys.readouterr().out) == again
    assert again["best"]["threads"] == 1 and again["error"] == 0.1 and again["best"]["longer"]["ttft_p95"] > 0


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--weight-bits", "8"], "about machines of the catalogue"),
        (["--mtbf", "1h"], "about machines of the catalogue"),
        (["--kv-memory", "64"], "a token's K and V take 32768 bytes"),
        (["--kv-memory", "some"], "is not a size"),
        (["--policies", "stallfree"], "did you mean stall-free"),
        (["--speculation", "1.5"], "is 0 to 1"),
        (["--pace", "none.json"], "cannot be read"),
        (["--twice"], "they must differ"),
        (["--table"], "is a table"),
    ],
)
def test_what_cannot_be_planned_for_a_measured_machine_is_one_sentence(
    more: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pace, table = tmp_path / "pace.json", tmp_path / "table.toml"
    calibration(2).write(pace)
    table.write_text("per_step_s = 0.01\n")
    more = {"--twice": ["--pace", str(pace)], "--table": ["--pace", str(table)]}.get(more[0], more)
    assert run([*HERE.split(), "--pace", str(pace), *more]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--observe http://127.0.0.1:1", "cannot be reached: connection refused"),
        ("--observe http://127.0.0.1:1 --rate 3", "--rate is about machines to choose"),
        ("--observe http://127.0.0.1:1 --for 0", "--for is 0 s"),
        ("--observe http://127.0.0.1:1 --key-env NO_SUCH_KEY", "no such variable is set"),
        ("--observe http://127.0.0.1:1 --slo ttft_p9<1s", "ttft_p9"),
        ("--for 30s", "--for is about a server that runs"),
        ("--model llama-3-8b", "--workload and --slo are missing"),
    ],
)
def test_a_server_that_cannot_be_watched(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", *line.split()]) == 2
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1
