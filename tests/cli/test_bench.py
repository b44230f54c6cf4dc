"""`octavo bench` from the command line: what it prints and writes, its exit codes, and how it tells of bad input."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from octavo.bench import validity
from octavo.bench.record import Record
from octavo.cli import bench_run, main
from tests.bench.scripted import Answers, Asked, Hang, Reply, Script, Step, error_reply, scripted
from tests.bench.synthetic import synthetic_record, synthetic_run
from tests.charts.reading import read

QUICK = Answers(ttft_s=0.005, gap_s=0.001, usage=True, cached_tokens=0)


@pytest.fixture
def serve() -> Iterator[Callable[[Script], str]]:
    """Starts scripted servers in a thread, and gives their addresses."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    open_ones = []

    def start(script: Script) -> str:
        context = scripted(script)
        server = asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result(10)
        open_ones.append(context)
        return server.url

    yield start
    for context in open_ones:
        asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine this process may be late, and that is not what these tests are about."""
    monkeypatch.setattr(validity, "LAG_LIMIT_S", 60.0)
    monkeypatch.setattr(validity, "CPU_LIMIT", 60.0)


@pytest.fixture
def workload(tmp_path: Path) -> str:
    path = tmp_path / "w.toml"
    path.write_text(
        'requests = 40\narrivals = { kind = "constant", rate = 100.0 }\n'
        'input = { kind = "fixed", tokens = 20 }\noutput = { kind = "fixed", tokens = 6 }\n'
    )
    return str(path)


def test_a_run_is_printed_recorded_and_drawn(
    serve: Callable[[Script], str], workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, record, html = serve(QUICK), tmp_path / "r.json.gz", tmp_path / "r.html"
    arguments = ["bench", url, "-w", workload, "--seed", "3", "-o", str(record), "--html", str(html)]
    code = main.run([*arguments, "--price-per-hour", "2", "--compat", "vllm"])
    shown = capsys.readouterr()
    assert code == 0, shown.err
    assert "TTFT from arrival" in shown.out and "USD per million output tokens" in shown.out
    assert "As vllm" in shown.out and "\x1b" not in shown.out + shown.err
    assert str(record) in shown.err and str(html) in shown.err
    [run] = Record.read(record).runs
    assert run.seed == 3 and run.rate == 100.0
    assert [one.output_tokens for one in run.exchanges] == [6] * 40
    assert "Definitions" in read(html.read_text()).text
    again = ["bench", "report", str(record), "--price-per-hour", "2", "--compat", "vllm"]
    assert main.run(again) == code
    assert capsys.readouterr().out == shown.out


def test_json_is_one_object_with_all_numbers(
    serve: Callable[[Script], str], workload: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main.run(
        ["bench", serve(QUICK), "-w", workload, "--json", "--slo", "e2e_p99<1m", "--clients", "4"]
    )
    shown = capsys.readouterr()
    assert code == 0, shown.err
    value = json.loads(shown.out)
    [point] = value["points"]
    assert point["clients"] == 4 and point["rate"] is None and value["met"] is True
    assert point["values"]["goodput"] == 1.0 and 0.004 < point["values"]["ttft_p50"] < 60
    assert [one["target"] for one in point["judged"]] == ["e2e_p99<60s", "error_share<=1%"]


@pytest.mark.slow
def test_a_sweep_with_repeats_has_all_its_runs(
    serve: Callable[[Script], str], workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "r.json"
    arguments = [
        "bench",
        serve(QUICK),
        "-w",
        workload,
        "--sweep",
        "100,200",
        "--repeats",
        "2",
        "-o",
        str(record),
    ]
    assert main.run(arguments) == 0
    shown = capsys.readouterr()
    assert "100 requests/s" in shown.out and "200 requests/s" in shown.out
    assert [(run.rate, run.seed) for run in Record.read(record).runs] == [
        (100.0, 0),
        (200.0, 1),
        (100.0, 2),
        (200.0, 3),
    ]


def test_failures_are_counted_and_told(
    serve: Callable[[Script], str], workload: str, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = iter(range(10**6))

    def script(asked: Asked) -> Reply:
        bad = asked.path.endswith("completions") and next(calls) % 4 == 3
        return Answers(status=503, ttft_s=0.001)(asked) if bad else QUICK(asked)

    code = main.run(["bench", serve(script), "-w", workload, "--slo", "error_share<1%"])
    shown = capsys.readouterr()
    assert code == 1, shown.err
    assert "status 503" in shown.out and "error_share<1% is not met" in shown.out


def test_a_server_s_words_move_no_cursor(
    serve: Callable[[Script], str], workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "bad\x1b[2J\x1b]0;title\x07\r\u202eworse"

    def script(one: Asked) -> Reply:
        probe = one.body.get("max_tokens") != 6
        return QUICK(one) if probe else error_reply(500, evil)

    record = tmp_path / "r.json"
    assert main.run(["bench", serve(script), "-w", workload, "-o", str(record)]) == 3
    failing = capsys.readouterr()
    assert main.run(["bench", serve(lambda _: error_reply(500, evil)), "-w", workload]) == 2
    refusing = capsys.readouterr()
    assert main.run(["bench", serve(Answers(models=(evil,))), "-w", workload, "--model", "x"]) == 2
    naming = capsys.readouterr()
    for shown in (failing, refusing, naming):
        assert "worse" in shown.out + shown.err
        assert all(letter.isprintable() or letter == "\n" for letter in shown.out + shown.err)
    assert all(one.message and one.message.isprintable() for one in Record.read(record).runs[0].exchanges)


def test_a_server_that_is_slow_to_say_what_it_serves_is_named_and_waited_for_as_long_as_was_said(
    serve: Callable[[Script], str],
    workload: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench_run, "_QUIET_S", 0.0)
    url = serve(lambda _: Reply(steps=(Step(0.0, Hang()),), raw=True))
    assert main.run(["bench", url, "-w", workload, "--timeout", "200ms"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"Asking {url} what it serves and takes.",
        f"error: {url} gives no answer within 0.2 s; is it busy, or another program? --timeout lets it take longer.",
    ]


@pytest.mark.parametrize("slo", [(), ("--slo", "ttft_p99<1s")])
def test_a_run_without_one_good_answer_is_no_success(
    slo: tuple[str, ...],
    serve: Callable[[Script], str],
    workload: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def script(one: Asked) -> Reply:
        probe = one.body.get("max_tokens") != 6  # it asks what the server takes
        return QUICK(one) if probe else Answers(status=503, ttft_s=0.001)(one)

    url, record = serve(script), str(tmp_path / "r.json")
    assert main.run(["bench", url, "-w", workload, "-o", record, *slo]) == 3
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    at = lines.index("NOT VALID: the server gave no good answer.")
    assert "requests was answered" in lines[at + 1] and not any(
        line.startswith("TTFT") for line in lines[:at]
    )
    assert "status 503" in shown.out
    assert main.run(["bench", "report", record, "--json", *slo]) == 3
    value = json.loads(capsys.readouterr().out)
    assert value["valid"] is False and value["points"][0]["runs"][0]["valid"] is False


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_run_that_a_signal_ends_is_kept_and_reported(
    number: signal.Signals, code: int, serve: Callable[[Script], str], workload: str, tmp_path: Path
) -> None:
    asked, enough = iter(range(10**6)), threading.Event()

    def script(one: Asked) -> Reply:
        if one.path.endswith("completions") and next(asked) == 40:
            enough.set()
        return QUICK(one)

    url, record = serve(script), tmp_path / "r.json"
    slow = [url, "-w", workload, "--rate", "20", "--requests", "20000", "-o", str(record)]
    with _bench(*slow) as process:
        assert enough.wait(60)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert "The run ended before its workload" in out and "Traceback" not in err
    [run] = Record.read(record).runs
    assert run.stopped and 20 < len(run.exchanges) < 20000


def test_a_signal_while_a_server_is_asked_what_it_can_ends_without_a_traceback(
    serve: Callable[[Script], str], workload: str
) -> None:
    asked = threading.Event()

    def script(one: Asked) -> Reply:
        asked.set()
        return Reply(steps=(Step(0.0, Hang()),))

    with _bench(serve(script), "-w", workload) as process:
        assert asked.wait(60)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 143 and out == "" and "Traceback" not in err, err


def test_a_record_is_kept_when_the_terminal_is_gone(
    serve: Callable[[Script], str], workload: str, tmp_path: Path
) -> None:
    asked, enough = iter(range(10**6)), threading.Event()

    def script(one: Asked) -> Reply:
        if one.path.endswith("completions") and next(asked) == 40:
            enough.set()
        return QUICK(one)

    record, ours, theirs = tmp_path / "r.json", *os.openpty()
    slow = [serve(script), "-w", workload, "--rate", "20", "--requests", "20000", "-o", str(record)]
    process = subprocess.Popen(
        [sys.executable, "-m", "octavo", "bench", *slow], stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    try:
        assert enough.wait(60)
        os.close(ours)
        process.send_signal(signal.SIGHUP)
        assert process.wait(60) == 129
    finally:
        process.kill()
        process.wait()
    [run] = Record.read(record).runs
    assert run.stopped and len(run.exchanges) > 20


@contextlib.contextmanager
def _bench(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "octavo", "bench", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_octavo_itself_is_measured_from_end_to_end(
    model_dir: Path, workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert model_dir.is_dir()
    record, html = tmp_path / "r.json.gz", tmp_path / "r.html"
    server = subprocess.Popen(
        [sys.executable, "-m", "octavo", "serve", "smollm2", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        assert found is not None
        arguments = [found[0], "-w", workload, "--rate", "5", "-o", str(record), "--html", str(html)]
        assert main.run(["bench", *arguments]) == 0, capsys.readouterr().err
    finally:
        server.terminate()
        server.communicate(timeout=60)
    made = Record.read(record)
    [run] = made.runs
    assert made.model == "smollm2" and made.options["target"]["prompts"] == "ids"
    for one in run.exchanges:
        assert (one.error, one.status, one.finish_reason) == (None, 200, "length")
        assert (one.input_tokens, one.output_tokens) == (20, 6), "exact lengths, as the workload says"
        assert sum(chunk.tokens for chunk in one.chunks) == 6 and one.counted in ("ids", "usage")
    assert {"running", "kv_use", "busy_s"} <= run.server[-1].values.keys()
    tree = read(html.read_text())
    titles = {one.text for one in tree.one("main").all("strong")}
    assert titles >= {"Requests", "Output tokens", "KV in use"}
    assert "Engine busy" in tree.text


def test_a_target_that_no_rate_meets_is_one_sentence_and_the_runs_are_kept(
    serve: Callable[[Script], str], workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "r.json"
    url = serve(Answers(ttft_s=0.03, gap_s=0.0))
    arguments = ["bench", url, "-w", workload, "--slo", "ttft_p99<1ms", "--search", "-q", "-o", str(record)]
    assert main.run(arguments) == 1
    shown = capsys.readouterr()
    assert re.fullmatch(
        r"error: ttft_p99<1ms is not met even at one request at a time: TTFT p99 [\d.]+ m?s \(bound < 1 ms\)\.\n",
        shown.err,
    )
    [run, *_] = Record.read(record).runs
    assert run.clients == 1 and "TTFT from arrival" in shown.out


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("TIMESTAMP,ContextTokens\n2023-11-16 18:15:46,10\n", "GeneratedTokens"),
        ('{"timestamp": -5, "input_length": 10, "output_length": 3, "hash_ids": [1]}\n', "-5"),
    ],
)
def test_a_bad_trace_is_told_before_anything_is_sent(
    text: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / ("t.csv" if text.startswith("T") else "t.jsonl")
    trace.write_text(text)
    assert main.run(["bench", "http://127.0.0.1:9", "-w", str(trace)]) == 2
    shown = capsys.readouterr()
    assert told in shown.err and "cannot be reached" not in shown.err and shown.err.count("\n") == 1, (
        shown.err
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["http://127.0.0.1:9", "-w", "chat"], "http://127.0.0.1:9 cannot be reached"),
        (["nowhere", "-w", "chat"], "nowhere"),
        (["http://127.0.0.1:9"], "--workload"),
        (["http://127.0.0.1:9", "-w", "chatt"], "did you mean chat?"),
        (["http://127.0.0.1:9", "-w", "chat", "--slo", "ttft_p99<500"], "a time without its unit"),
        (["http://127.0.0.1:9", "-w", "chat", "--slo", "tfft_p99<500ms"], "did you mean ttft_p99?"),
        (["http://127.0.0.1:9", "-w", "chat", "--rate", "2", "--sweep", "1,2"], "--rate and --sweep"),
        (["http://127.0.0.1:9", "-w", "chat", "--rate", "-2"], "above 0"),
        (["http://127.0.0.1:9", "-w", "chat", "--sweep", "1,x"], "--sweep is '1,x'"),
        (["http://127.0.0.1:9", "-w", "chat", "--sweep", "2,2"], "a rate twice"),
        (["http://127.0.0.1:9", "-w", "chat", "--clients", "2.5"], "a whole number"),
        (["http://127.0.0.1:9", "-w", "chat", "--search"], "--search needs an --slo"),
        (
            ["http://127.0.0.1:9", "-w", "batch", "--search", "--slo", "ttft<1s"],
            "have none that can be changed",
        ),
        (
            ["http://127.0.0.1:9", "-w", "chat", "--search", "--slo", "ttft<1s", "--rate", "1"],
            "leave out --rate",
        ),
        (["http://127.0.0.1:9", "-w", "chat", "--tolerance", "0"], "--tolerance is '0'"),
        (["http://127.0.0.1:9", "-w", "chat", "--tolerance", "5%"], "--tolerance is for a --search"),
        (["http://127.0.0.1:9", "-w", "chat", "--key-env", "NO_SUCH_KEY"], "--key-env is 'NO_SUCH_KEY'"),
        (
            ["http://127.0.0.1:9", "-w", "chat", "--watts", "5", "--idle-watts", "9"],
            "--idle-watts is 9 and --watts 5",
        ),
        (["http://127.0.0.1:9", "-w", "chat", "--max-rate", "2"], "--max-rate is for a --search"),
        (["http://127.0.0.1:9", "-w", "chat", "--extra-body", "[1]"], "must be a JSON object"),
        (["http://127.0.0.1:9", "-w", "chat", "--extra-body", "{"], "which is no JSON"),
        (["http://127.0.0.1:9", "-w", "chat", "--header", "nonsense"], "a name, a colon and a value"),
        (["http://127.0.0.1:9", "-w", "chat", "--header", "Host: x"], "--header is Host"),
        (["http://127.0.0.1:9", "-w", "chat", "--header", "A: b\r\nC: d"], "no header may have"),
        (["http://127.0.0.1:9", "-w", "chat", "--compat", "wrk"], "--compat is 'wrk'"),
        (
            ["http://127.0.0.1:9", "-w", "chat", "-o", "/no/such/folder/r.json"],
            "/no/such/folder/r.json cannot be written",
        ),
        (["http://127.0.0.1:9", "-w", "chat", "--html", "/"], "is a folder"),
        (["http://127.0.0.1:9", "-w", "chat", "--idle-watts", "9"], "give the busy watts"),
        (["http://127.0.0.1:9", "-w", "chat", "--hosted", "x"], "NAME:in=2.5"),
        (["http://127.0.0.1:9", "-w", "chat", "--timeout", "5"], "'5' is not a time"),
        (["report", "/no/such.json"], "/no/such.json"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["bench", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and told in shown.err and shown.err.count("\n") == 1, shown.err


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (Answers(streams=False), "stream"),
        (Answers(models=()), "serves no model"),
        (Answers(status=401), "401"),
    ],
)
def test_a_server_that_cannot_be_measured_is_one_sentence(
    script: Answers,
    told: str,
    serve: Callable[[Script], str],
    workload: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.run(["bench", serve(script), "-w", workload]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and told in shown.err and shown.err.count("\n") == 1, shown.err


def test_a_record_that_is_none_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.json"
    file.write_text("{}")
    assert main.run(["bench", "report", str(file)]) == 2
    assert "this is no record of octavo bench" in capsys.readouterr().err


def test_a_report_takes_another_target_warm_up_and_price(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "r.json"
    record = synthetic_record(synthetic_run(4.0))
    record.options["slo"] = "ttft_p99<1m"
    record.write(file)
    assert main.run(["bench", "report", str(file), "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["slo"] == "ttft_p99<1m" and first["met"] is True and first["cost"] is None
    changed = [
        "--slo",
        "ttft_p99<1ms",
        "--warmup",
        "10s",
        "--price-per-hour",
        "1",
        "--html",
        str(tmp_path / "p.html"),
    ]
    assert main.run(["bench", "report", str(file), "--json", *changed]) == 1
    second = json.loads(capsys.readouterr().out)
    assert second["met"] is False and second["cost"]["per_hour"] == 1.0
    assert second["points"][0]["runs"][0]["window_s"][0] == 10.0
    assert "ttft_p99<1ms is not met" in read((tmp_path / "p.html").read_text()).text


def test_a_comparison_s_exit_code_is_its_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = []
    for name, late_us in (("a", 0), ("b", 40_000)):
        record = synthetic_record(*(synthetic_run(4.0, seed=seed) for seed in range(5)))
        for run in record.runs:
            run.end_us += late_us
            for one in run.exchanges:
                one.end_us += late_us
                for chunk in one.chunks:
                    chunk.at_us += late_us
        names.append(str(tmp_path / f"{name}.json.gz"))
        record.write(Path(names[-1]))
    html = tmp_path / "c.html"
    assert main.run(["bench", "compare", *names, "--html", str(html)]) == 1
    assert (
        capsys.readouterr().out.startswith("Regression: ") and "Regression: " in read(html.read_text()).text
    )
    assert main.run(["bench", "compare", *names, "--threshold", "60%"]) == 0
    capsys.readouterr()
    assert main.run(["bench", "compare", *reversed(names), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["regression"] is False
    assert main.run(["bench", "compare", names[0], names[0]]) == 0
    other = synthetic_record(synthetic_run(9.0))
    other.write(tmp_path / "other.json")
    capsys.readouterr()
    for wrong, told in (
        (["compare", names[0], "/no/such.json"], "/no/such.json"),
        (["compare", names[0], str(tmp_path / "other.json")], "no load in common"),
        (["compare", *names, "--threshold", "x"], "--threshold is 'x'"),
        (["compare", names[0]], "'B'"),
    ):
        assert main.run(["bench", *wrong]) == 2
        shown = capsys.readouterr()
        assert told in shown.err and shown.err.count("\n") == 1 and shown.out == "", shown.err


def test_help_is_that_of_a_run_and_names_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["bench", "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Usage: octavo bench [OPTIONS]")
    for words in (
        "The load:",
        "The goal:",
        "Cost and energy:",
        "octavo bench report FILE",
        "octavo bench compare A B",
    ):
        assert words in shown
    assert main.run(["bench"]) == 0
    assert capsys.readouterr().out == shown


def test_keys_and_headers_are_sent_and_are_in_no_file(
    serve: Callable[[Script], str],
    workload: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret")
    seen: list[dict[str, str]] = []

    def script(asked: Asked) -> Reply:
        seen.append(asked.headers)
        return QUICK(asked)

    record, html = tmp_path / "r.json", tmp_path / "r.html"
    secrets = ["--key-env", "MY_KEY", "--header", "X-Team: red-secret", "--header", "X-Two:2"]
    assert (
        main.run(["bench", serve(script), "-w", workload, *secrets, "-o", str(record), "--html", str(html)])
        == 0
    )
    shown = capsys.readouterr()
    assert len(seen) > 40
    for headers in seen:
        assert (headers["authorization"], headers["x-team"], headers["x-two"]) == (
            "Bearer sk-secret",
            "red-secret",
            "2",
        )
    written = record.read_text() + html.read_text() + shown.out + shown.err
    assert "sk-secret" not in written and "red-secret" not in written
    assert Record.read(record).options["header"] == ["X-Team: ***", "X-Two: ***"]


def test_the_server_s_metrics_are_read_unless_they_are_not_wanted(
    serve: Callable[[Script], str], workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "vllm:num_requests_running 3\nvllm:num_requests_waiting 1\nvllm:kv_cache_usage_perc 0.5\n"
    url, record = serve(Answers(ttft_s=0.005, gap_s=0.001, metrics=lambda: text)), tmp_path / "r.json"
    arguments = ["bench", url, "-w", workload, "-o", str(record)]
    assert main.run(arguments) == 0
    [run] = Record.read(record).runs
    assert run.server[0].values["running"] == 3.0
    capsys.readouterr()
    assert main.run([*arguments, "--no-metrics"]) == 0
    assert Record.read(record).runs[0].server == []
    assert main.run(["bench", serve(QUICK), "-w", workload, "-o", str(record)]) == 0
    assert "/metrics is not served (404)" in capsys.readouterr().err
