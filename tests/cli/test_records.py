"""Lines of prompts, lines of answers: every bad line is told, nothing written is lost or doubled."""

from __future__ import annotations

import io
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.backends.base import TokenSample
from octavo.cli.records import AnswerFile, Task, answer_record, read_tasks
from octavo.errors import InvalidParameter
from octavo.llm import CompletionOutput, Request, RequestOutput
from octavo.sampling.params import SamplingParams


def read(
    text: str | bytes, *, model: str = "m", jsonl: bool | None = None, chat: bool = False, **defaults: Any
) -> list[Task]:
    data = text.encode() if isinstance(text, str) else text
    defaults = {"max_tokens": 256, **defaults}
    return read_tasks(io.BytesIO(data), defaults, model=model, jsonl=jsonl, chat=chat)


def test_plain_lines() -> None:
    tasks = read("first\n\n  second é\r\nthird", temperature=0.5)
    assert [(task.id, task.prompt) for task in tasks] == [(1, "first"), (3, "  second é"), (4, "third")]
    assert all(task.params == SamplingParams(max_tokens=256, temperature=0.5) for task in tasks)


def test_records() -> None:
    one, two, three = read(
        '{"id": "a", "prompt": "x", "temperature": 0, "stop": "\\n", "logit_bias": {"5": -100}, "n": 2}\n'
        '{"messages": [{"role": "user", "content": "hi"}], "max_tokens": null}\n'
        '{"id": 7, "prompt": [1, 2]}\n'
    )
    assert (one.id, one.prompt, two.id, three.id, three.prompt) == ("a", "x", 2, 7, [1, 2])
    assert one.params == SamplingParams(
        temperature=0, stop=("\n",), logit_bias={5: -100.0}, n=2, max_tokens=256
    )
    assert two.messages == [{"role": "user", "content": "hi"}]
    assert two.params == SamplingParams(max_tokens=None)


def test_the_first_line_decides_unless_it_is_said() -> None:
    assert read("\ufeff{ not json\n{}")[0].error
    assert [task.prompt for task in read('{"prompt": "x"}', jsonl=False)] == ['{"prompt": "x"}']
    mixed = 'x\n{"prompt": "y"}'
    assert [task.prompt for task in read(mixed, jsonl=False)] == ["x", '{"prompt": "y"}']
    plain, record = read(mixed)
    assert (plain.prompt, plain.error) == ("x", None)
    assert record.error is not None and "Line 2 is a record, and the first line is plain" in record.error
    assert [task.prompt for task in read('x\n{"no": "record"}\n{y')] == ["x", '{"no": "record"}', "{y"]
    assert read("x", jsonl=True)[0].error
    assert read("") == read("\n \n") == []


def test_prompts_can_be_messages() -> None:
    assert read("hi", chat=True)[0].messages == [{"role": "user", "content": "hi"}]
    tasks = read('{"prompt": "hi"}\n{"prompt": [1]}', chat=True)
    assert tasks[0].messages == [{"role": "user", "content": "hi"}]
    assert tasks[1].prompt == [1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "Line 2 is not a JSON object"),
        ("[1]", "Line 2 is not a JSON object"),
        ("[" * 100_000, "Line 2 is not a JSON object"),
        ("{}", "either a prompt or messages"),
        ('{"prompt": "x", "messages": []}', "either a prompt or messages"),
        ('{"prompt": 5}', "prompt is a text or token ids"),
        ('{"messages": "x"}', "messages a list"),
        ('{"prompt": "x", "id": 1.5}', "id is a string or an integer"),
        ('{"prompt": "x", "id": true}', "id is a string or an integer"),
        ('{"prompt": "x", "temprature": 1}', "unknown field 'temprature'"),
        ('{"prompt": "x", "temperature": -1}', "temperature is -1"),
        ('{"prompt": "x", "temperature": "hot"}', "temperature"),
        ('{"prompt": "x", "logit_bias": {"a": 1}}', "logit_bias"),
        ('{"prompt": "x", "id": "first"}', "has the id of line 1"),
    ],
)
def test_a_bad_record_is_told_and_the_others_stand(line: str, message: str) -> None:
    first, bad, last = read(f'{{"prompt": "x", "id": "first"}}\n{line}\n{{"prompt": "x"}}')
    assert message in (bad.error or "")
    assert first.error is last.error is None


@pytest.mark.parametrize(
    "line", [b"\xff\xfe", b'{"prompt": "\xff"}', b'{"prompt": "x", "\xff": 1}', b"{\xff"]
)
def test_a_line_that_is_no_text(line: bytes) -> None:
    good, bad = read(b"{}\n" + line + b"\n", jsonl=line.startswith(b"{"))
    assert good.id == 1
    assert "Line 2 is not UTF-8" in (bad.error or "")


def test_an_endless_line_is_refused() -> None:
    with (
        Path("/dev/zero").open("rb") as file,
        pytest.raises(InvalidParameter, match="Line 1 has more than 64 MiB"),
    ):
        read_tasks(file, {}, model="m", jsonl=None, chat=False)


def test_a_hash_tells_requests_apart() -> None:
    def hashes(text: str, **how: Any) -> list[str]:
        return [task.request_hash for task in read(text, **how)]

    same = '{"id": %s, "prompt": "x"}\n'
    first, second = hashes(same % 1 + same % 2)
    assert first == second
    assert first == hashes('{"prompt": "x", "top_p": 1.0, "stop": []}')[0]
    others = hashes(
        '{"prompt": "y"}\n{"prompt": "x", "n": 2}\n{"prompt": [1]}\n{"prompt": "x", "seed": 1}\n'
        '{"messages": [{"role": "user", "content": "x"}]}\n{"prompt": "x", "logit_bias": {"5": 1}}'
    )
    others += hashes('{"prompt": "x"}', model="other") + hashes('{"prompt": "x"}', max_tokens=9)
    assert len({first, *others}) == 9
    assert hashes('{"prompt": "x"}', chat=True) == others[4:5]
    assert hashes("{}\n{") == ["", ""]


def test_defaults_are_checked() -> None:
    with pytest.raises(InvalidParameter, match="top_p"):
        read("x", top_p=2.0)


def test_answers() -> None:
    sample = TokenSample(5, -0.5, ((5, -0.5), (6, -1.0)))
    outputs = tuple(
        CompletionOutput(i, text, (5,), (sample,), "stop", stop)
        for i, (text, stop) in enumerate([("a", "\n"), ("b", None)])
    )
    request = Request("x", (1, 2, 3), SamplingParams(seed=9))
    record = answer_record(Task("a", request_hash="h"), request, RequestOutput("x", (1, 2, 3), outputs[:1]))
    assert record == {
        "id": "a",
        "text": "a",
        "finish_reason": "stop",
        "stop_reason": "\n",
        "logprobs": [{"token": 5, "logprob": -0.5, "top": {5: -0.5, 6: -1.0}}],
        "seed": 9,
        "prompt_tokens": 3,
        "completion_tokens": 1,
        "request_hash": "h",
    }
    two = answer_record(
        Task(1),
        Request("x", (1,), SamplingParams(seed=9, n=2)),
        RequestOutput("x", (1,), outputs, prompt_logprobs=(None, sample)),
    )
    assert [choice["text"] for choice in two["choices"]] == ["a", "b"]
    assert two["prompt_logprobs"][0] is None
    assert two["completion_tokens"] == 2
    failed = answer_record(Task(1), request, RequestOutput("x", (1,), outputs, error="It broke."))
    assert failed == {"id": 1, "error": "It broke."}


RECORDS: list[dict[str, Any]] = [
    {"id": 1, "text": "é\n", "request_hash": "h"},
    {"id": "1", "error": "x"},
    {"id": "b", "choices": [], "request_hash": "h"},
]


def write_all(path: Path) -> bytes:
    with AnswerFile(path) as answers:
        for record in RECORDS:
            answers.write(record)
    return path.read_bytes()


@given(cut=st.integers(0, 200))
def test_a_file_torn_anywhere_is_continued(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    """What is whole stays, what is torn is written again: the file is as if nothing had happened."""
    path = tmp_path_factory.mktemp("answers") / "out.jsonl"
    whole = write_all(path)
    path.write_bytes(whole[:cut])
    with AnswerFile(path) as answers:
        for record in RECORDS:
            if not answers.done(Task(record["id"], request_hash="h")):
                answers.write(record)
    assert path.read_bytes() == whole


def test_ids_keep_their_type(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text('{"id": 1, "text": "", "request_hash": "h"}\n')
    with AnswerFile(path) as answers:
        assert answers.done(Task(1, request_hash="h"))
        assert not answers.done(Task("1", request_hash="h"))


def test_an_error_is_tried_again_and_not_written_twice(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    error = {"id": 1, "error": "It broke."}
    for _ in range(2):
        with AnswerFile(path) as answers:
            assert not answers.done(Task(1, request_hash="h"))
            answers.write(error)
            assert (answers.answered, answers.failed) == (0, 1)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [error]
    with AnswerFile(path) as answers:
        answers.write({"id": 1, "text": "", "request_hash": "h"})
        assert (answers.answered, answers.failed) == (1, 0)
    with AnswerFile(path) as answers:
        assert answers.done(Task(1, request_hash="h"))


def test_an_answer_to_another_request_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    whole = write_all(path)
    with AnswerFile(path) as answers, pytest.raises(InvalidParameter, match=r"id 'b' to another request"):
        answers.done(Task("b", request_hash="other"))
    assert path.read_bytes() == whole


def test_one_process_writes_a_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    whole = write_all(path)
    with (
        AnswerFile(path),
        pytest.raises(InvalidParameter, match="written by another octavo generate"),
        AnswerFile(path),
    ):
        pass
    assert write_all(path).startswith(whole)


def test_a_full_disk_names_the_file() -> None:
    with (
        pytest.raises(OSError, match=r"No space left on device: '/dev/full'"),
        AnswerFile(Path("/dev/full")) as out,
    ):
        out.write(RECORDS[0])


def test_a_pipe_is_written_and_not_read(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    seen: list[bytes] = []
    reader = threading.Thread(target=lambda: seen.append(path.read_bytes()))
    reader.start()
    with AnswerFile(path) as answers:
        assert not answers.continues
        answers.write({"id": 1, "error": "x"})
    reader.join(60)
    assert seen == [b'{"id":1,"error":"x"}\n']


@pytest.mark.parametrize(
    "content",
    ["hello\n", "hello", '{"id": 1, "prompt": "x"}\n', "[1]\n", '{"text": ""}\n', '{"id": 1, "text": ""}\n'],
)
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text(content)
    with pytest.raises(InvalidParameter, match="something else than an answer in line 1"), AnswerFile(path):
        pass
    assert path.read_text() == content


def test_every_line_is_written_at_once(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with AnswerFile(path) as answers:
        answers.write({"id": 1, "text": "a\u2028b"})
        assert json.loads(path.read_text()) == {"id": 1, "text": "a\u2028b"}


def test_an_interruption_waits_until_a_record_is_written_and_counted(tmp_path: Path) -> None:
    """However it falls between the two: Ctrl-C comes while the line is flushed."""

    class Interrupting(io.BytesIO):
        def flush(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    with AnswerFile(tmp_path / "out.jsonl") as answers:
        answers._file.close()
        answers._file = file = Interrupting()
        with pytest.raises(KeyboardInterrupt):
            answers.write({"id": 1, "text": "x"})
        assert file.getvalue().endswith(b"}\n")
        assert answers.answered == 1
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
