"""`octavo generate`, as it is typed, with a tiny model."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from octavo.cli.main import run


@pytest.fixture
def command(tiny_model_path: Path) -> list[str]:
    return ["generate", "--model", str(tiny_model_path), "--num-blocks", "64", "--max-tokens", "6"]


def records(text: str) -> dict[Any, dict[str, Any]]:
    return {record["id"]: record for record in map(json.loads, text.splitlines())}


def test_lines_to_standard_output(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Hello\nthe world\n")))
    assert run([*command, "--seed", "3"]) == 0
    shown = capsysbinary.readouterr()
    answers = records(shown.out.decode())
    assert set(answers) == {1, 2}
    assert all(answer["seed"] == 3 and answer["completion_tokens"] <= 6 for answer in answers.values())
    assert shown.err == b"2 answered, 0 failed\n"


def test_records_to_a_file_and_again(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [
        {"id": "a", "prompt": "Hello", "n": 2},
        {"id": "b", "messages": [{"role": "user", "content": "Hello"}], "temperature": 0},
        {"id": "c", "prompt": "Hello", "n": 0},
        {"id": "d", "prompt": "the " * 9999},
        {"id": "e", "messages": [{"role": "user"}]},
        {"id": "f", "prompt": "Hello", "temperature": 0, "logprobs": 0},
    ]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run([*command, str(prompts), "-o", str(output)]) == 2
    assert capsys.readouterr().err == "3 answered, 3 failed\n"
    written = output.read_text()
    answers = records(written)
    assert set(answers) == set("abcdef")
    assert len(answers["a"]["choices"]) == 2
    assert "n is 0" in answers["c"]["error"]
    assert "tokens" in answers["d"]["error"]
    assert "messages[0].content" in answers["e"]["error"]
    assert len(answers["f"]["logprobs"]) == answers["f"]["completion_tokens"]
    assert answers["b"]["prompt_tokens"] > answers["f"]["prompt_tokens"]

    # An error is no answer: it is tried again, and told again, but the file does not grow.
    assert run([*command, str(prompts), "-o", str(output)]) == 2
    assert capsys.readouterr().err == "0 answered, 3 failed, 3 done before\n"
    assert output.read_text() == written


def test_a_finished_run_loads_no_model(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    prompts.write_text("Hello\nthe\n")
    assert run([*command, str(prompts), "-o", str(output)]) == 0
    monkeypatch.delattr("octavo.cli.generate.local_model")
    assert run([*command, str(prompts), "-o", str(output)]) == 0
    assert capsys.readouterr().err.endswith("\n0 answered, 0 failed, 2 done before\n")


@pytest.mark.parametrize(
    ("prompt", "options"), [("the", []), ("Hello", ["--temperature", "0"]), ("Hello", ["--chat"])]
)
def test_answers_to_something_else_are_not_continued(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], prompt: str, options: list[str]
) -> None:
    prompts, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    prompts.write_text("Hello\n")
    assert run([*command, str(prompts), "-o", str(output)]) == 0
    written = output.read_text()
    prompts.write_text(f"{prompt}\nmore\n")
    capsys.readouterr()
    assert run([*command, *options, str(prompts), "-o", str(output)]) == 2
    assert "id 1 to another request" in capsys.readouterr().err
    assert output.read_text() == written


def test_a_torn_file_is_completed(command: list[str], tmp_path: Path) -> None:
    prompts, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    prompts.write_text("Hello\nthe\nworld\n")
    assert run([*command, str(prompts), "-o", str(output), "--temperature", "0"]) == 0
    whole = output.read_text()
    output.write_text(whole[: len(whole) - 20])
    assert run([*command, str(prompts), "-o", str(output), "--temperature", "0"]) == 0
    again = output.read_text()

    def texts(text: str) -> dict[Any, str]:
        return {key: answer["text"] for key, answer in records(text).items()}

    assert texts(again) == texts(whole)
    assert len(again.splitlines()) == 3


def test_an_interrupted_run_keeps_what_it_has_and_goes_on(command: list[str], tmp_path: Path) -> None:
    prompts, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    prompts.write_text("".join(f"the {n}\n" for n in range(3000)))
    process = subprocess.Popen(
        [sys.executable, "-m", "octavo", *command, str(prompts), "-o", str(output)], stderr=subprocess.PIPE
    )
    try:
        deadline = time.monotonic() + 60
        while not (output.exists() and output.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, shown = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, shown
    text = output.read_text()
    assert text.endswith("\n")
    kept = records(text)
    assert shown.decode() == (
        f"interrupted: {len(kept)} of 3000 are answered; the same command goes on from there\n"
    )
    assert 0 < len(kept) < 3000

    prompts.write_text("".join(f"the {n}\n" for n in range(len(kept) + 20)))
    assert run([*command, str(prompts), "-o", str(output)]) == 0
    lines = output.read_text().splitlines()
    assert lines[: len(kept)] == text.splitlines()
    assert len(records("\n".join(lines))) == len(lines)


def test_what_cannot_work(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, str(tmp_path / "absent")]) == 2
    assert "absent: No such file or directory; check the path." in capsys.readouterr().err
    prompts = tmp_path / "in.txt"
    prompts.write_text("x\n")
    assert run([*command, str(prompts), "--temperature", "-1"]) == 2
    assert "temperature is -1" in capsys.readouterr().err
    assert run([*command, str(prompts), "-o", str(prompts)]) == 2
    assert "choose another output file" in capsys.readouterr().err
    assert run([*command, str(prompts), "-o", str(tmp_path / "no" / "out")]) == 2
    assert run([*command, str(prompts), "-o", str(tmp_path)]) == 2
    assert f"{tmp_path}: Is a directory; give a file." in capsys.readouterr().err
    assert run([*command, str(prompts), "-o", "/dev/full"]) == 1
    assert capsys.readouterr().err == "error: /dev/full: No space left on device.\n"
    assert run([*command, "/dev/zero"]) == 2
    assert "is this a file of prompts?" in capsys.readouterr().err
    assert prompts.read_text() == "x\n"


def test_a_reader_that_leaves_is_no_fault_of_ours(command: list[str], tmp_path: Path) -> None:
    prompts = tmp_path / "in.txt"
    prompts.write_text("the\n" * 50)
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as out:
        done = subprocess.run(
            [sys.executable, "-m", "octavo", *command, str(prompts)],
            stdout=out, stderr=subprocess.PIPE, check=False, timeout=60,
        )  # fmt: skip
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
