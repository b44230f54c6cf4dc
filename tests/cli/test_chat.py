"""`octavo chat`: one question, a pipe, and a conversation on a real terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.cli.chat import Conversation
from octavo.cli.main import run
from octavo.errors import CapacityError
from octavo.llm import LLM
from octavo.sampling.params import SamplingParams


@pytest.fixture
def command(tiny_model_path: Path) -> list[str]:
    return ["chat", "--model", str(tiny_model_path), "--num-blocks", "64", "--temperature", "0"]


def expected(tiny_model_path: Path, message: str, tokens: int) -> str:
    with LLM(tiny_model_path, num_blocks=64) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=tokens)
        return llm.chat([{"role": "user", "content": message}], params)[0].text


def test_one_question(command: list[str], tiny_model_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, "Hello", "--max-tokens", "9"]) == 0
    assert capsys.readouterr().out == expected(tiny_model_path, "Hello", 9) + "\n"


def test_a_piped_question(command: list[str], tiny_model_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "octavo", *command, "--max-tokens", "9"],
        input="Hello é\n".encode(), capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.decode() == expected(tiny_model_path, "Hello é\n", 9) + "\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["the " * 9999], "tokens"),
        (["Hello", "--top-p", "2"], "top_p is 2"),
        ([""], "No message was given"),
        ([" \n"], "No message was given"),
        (["a\udcffb"], "not UTF-8 (at character 2)"),
        (["Hello", "--system", "\udcff"], "not UTF-8"),
    ],
)
def test_errors(
    command: list[str], arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--max-tokens", "2", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("piped", "message"),
    [(b"", "No message was given"), (b"\n", "No message was given"), (b"\xff", "not UTF-8")],
)
def test_a_pipe_without_a_message(command: list[str], piped: bytes, message: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "octavo", *command], input=piped, capture_output=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert message in done.stderr.decode()


@pytest.fixture
def llm(tiny_model_path: Path) -> Iterator[LLM]:
    with LLM(tiny_model_path, num_blocks=64) as llm:
        yield llm


def test_a_conversation_remembers(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    conversation = Conversation(llm, SamplingParams(temperature=0.0, max_tokens=5), "Be brief.")
    assert conversation.answer("Hello")
    first = capsys.readouterr().out.removesuffix("\n")
    assert conversation.answer("the world")
    assert [message["role"] for message in conversation.messages] == ["system", *["user", "assistant"] * 2]
    assert conversation.messages[2]["content"] == first
    whole = list(conversation.messages)
    with pytest.raises(CapacityError):
        conversation.answer("the " * 9999)
    assert conversation.messages == whole
    conversation.reset()
    assert conversation.messages == whole[:1]


def test_ctrl_c_keeps_what_was_said(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> Iterator[str]:
        yield "some"
        raise KeyboardInterrupt

    monkeypatch.setattr(llm, "stream_chat", lambda messages, params: interrupted())
    conversation = Conversation(llm, SamplingParams(), None)
    assert not conversation.answer("Hello")
    assert conversation.messages[-1] == {"role": "assistant", "content": "some"}
    assert capsys.readouterr().out == "some\n"


def test_what_is_said_cannot_steer_the_terminal(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        llm, "stream_chat", lambda messages, params: (text for text in ["a\x1b[2J\n\t\x9b", "é"])
    )
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    Conversation(llm, SamplingParams(), None).answer("Hello")
    assert capsys.readouterr().out == "a\ufffd[2J\n\t\ufffdé\n"


class Terminal:
    """A process on a terminal of its own, as a user has it."""

    def __init__(self, command: list[str]) -> None:
        self._file, theirs = pty.openpty()
        script = (  # its own terminal: Ctrl-C typed there becomes a signal
            "import fcntl, runpy, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
            "runpy.run_module('octavo', run_name='__main__', alter_sys=True)"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", script, *command],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**os.environ, "TERM": "dumb"},
        )
        os.close(theirs)
        self.shown = ""

    def wait_for(self, pattern: str, *, again: str = "") -> None:
        """Read until `pattern` is seen; what was shown up to it is dropped. `again` is sent while nothing comes: a
        signal just before readline begins to wait is seen with the next key."""
        deadline = time.monotonic() + 60
        while (match := re.search(pattern, self.shown, re.DOTALL)) is None:
            left = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._file], [], [], min(left, 2.0) if again else left)
            if again and left and not ready:
                self.send(again)
                continue
            assert ready, f"{pattern!r} was not shown, but {self.shown!r}"
            try:
                data = os.read(self._file, 4096)
            except OSError:  # the process has closed its end
                data = b""
            assert data, f"{pattern!r} was not shown at the end, but {self.shown!r}"
            self.shown += data.decode(errors="replace")
        self.shown = self.shown[match.end() :]

    def send(self, text: str) -> None:
        self.send_bytes(text.encode())

    def send_bytes(self, data: bytes) -> None:
        os.write(self._file, data)

    def exit_code(self) -> int:
        return self._process.wait(timeout=60)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._file)


@pytest.fixture
def terminal(command: list[str]) -> Iterator[Terminal]:
    terminal = Terminal([*command, "--max-tokens", "4"])
    yield terminal
    terminal.close()


def test_a_conversation_on_a_terminal(terminal: Terminal) -> None:
    terminal.wait_for("/help lists.*> ")
    terminal.send("/help\n")
    terminal.wait_for("/reset .*/exit .*> ")
    terminal.send("Hello\n")
    terminal.wait_for("Hello.*\n.*\n> ")
    terminal.send("/reset\n")
    terminal.wait_for("forgotten.*> ")
    terminal.send("the " * 700 + "\n")
    terminal.wait_for("shorten the prompt.*/reset.*> ")
    terminal.send("\x03")
    terminal.wait_for("/exit leaves.*> ", again="\x03")
    terminal.send_bytes(b"a\xffb\n")
    terminal.wait_for("input is not UTF-8.*> ")
    terminal.send("/exit\n")
    assert terminal.exit_code() == 0


def test_the_end_of_input_leaves(terminal: Terminal) -> None:
    terminal.wait_for("> ")
    terminal.send("\x04")
    assert terminal.exit_code() == 0
