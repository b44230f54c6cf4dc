"""Files of prompts and of answers, one record a line. Knows their shape, and no model.

In: JSONL objects with `prompt` or `messages`, any of SamplingParams' fields, and an `id`; or plain lines, each a
prompt. Out: `{"id", "text", "finish_reason", …}` or `{"id", "error"}`.
"""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

import msgspec

from octavo.errors import ClientError, InvalidParameter
from octavo.sampling.params import SamplingParams

if TYPE_CHECKING:
    from octavo.backends.base import TokenSample
    from octavo.llm import Request, RequestOutput

__all__ = ["AnswerFile", "Task", "answer_record", "read_tasks"]

Id = str | int

_PARAMS = frozenset(SamplingParams.__struct_fields__)
_ANSWERS = frozenset({"text", "choices", "error"})
"""One of these is in every record that is written."""


@dataclass(frozen=True)
class Task:
    """What one line asks for. `error`: the line cannot be used, and why."""

    id: Id
    prompt: Any = None
    """A text or token ids."""
    messages: Any = None
    params: SamplingParams | None = None
    error: str | None = None


def read_tasks(data: bytes, defaults: Mapping[str, Any], *, jsonl: bool | None, chat: bool) -> list[Task]:
    """The tasks in a file's bytes; a bad line becomes a task with an error.

    `defaults`: SamplingParams' fields for lines that do not give them. `jsonl` None: they are records when the
    first line begins with a brace. `chat`: a plain line, or a record's `prompt`, is a user's message. A record
    without an `id` has the number of its line.
    """
    data = data.removeprefix(codecs.BOM_UTF8)
    lines = [(number, line) for number, line in enumerate(data.splitlines(), 1) if line.strip()]
    if jsonl is None:
        jsonl = bool(lines) and lines[0][1].lstrip().startswith(b"{")
    fallback = SamplingParams(**defaults)
    tasks: list[Task] = []
    seen: dict[str, int] = {}
    for number, line in lines:
        task = _record(line, number, defaults) if jsonl else _plain(line, number, fallback)
        if (first := seen.setdefault(_key(task.id), number)) != number:
            task = Task(task.id, error=f"Line {number} has the id of line {first}; ids must differ.")
        if chat and isinstance(task.prompt, str):
            task = Task(task.id, None, [{"role": "user", "content": task.prompt}], task.params)
        tasks.append(task)
    return tasks


def answer_record(task: Task, request: Request, output: RequestOutput) -> dict[str, Any]:
    """What is written for a task that was answered."""
    if output.error is not None:
        return {"id": task.id, "error": output.error}
    choices = [
        {
            "text": one.text,
            "finish_reason": one.finish_reason,
            **({} if one.stop_reason is None else {"stop_reason": one.stop_reason}),
            **({} if one.logprobs is None else {"logprobs": [_scored(sample) for sample in one.logprobs]}),
        }
        for one in output.outputs
    ]
    scores = output.prompt_logprobs
    return {
        "id": task.id,
        **(choices[0] if request.params.n == 1 else {"choices": choices}),
        **({} if scores is None else {"prompt_logprobs": [s and _scored(s) for s in scores]}),
        "seed": request.params.seed,
        "prompt_tokens": len(output.prompt_token_ids),
        "completion_tokens": sum(len(one.token_ids) for one in output.outputs),
    }


class AnswerFile:
    """Records appended to a file, or (None) to standard output. A file that is there is continued.

    `done` tells what it holds. A last line that an interruption tore is taken away. Raises InvalidParameter for a
    file with other things in it, OSError for one that cannot be written.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._done: set[str] = set()
        self._file: IO[bytes] = sys.stdout.buffer

    def __enter__(self) -> Self:
        if self._path is not None:
            self._file = self._path.open("ab")
            try:
                self._resume(self._path)
            except BaseException:
                self._file.close()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._path is not None:
            self._file.close()

    def done(self, task: Task) -> bool:
        """A record of this id is there."""
        return _key(task.id) in self._done

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one line, at once."""
        self._file.write(msgspec.json.encode(record) + b"\n")
        self._file.flush()

    def _resume(self, path: Path) -> None:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                record = _json(line)
                if isinstance(record, dict) and "id" in record and record.keys() & _ANSWERS:
                    self._done.add(_key(record["id"]))
                    if not line.endswith(b"\n"):
                        self._file.write(b"\n")  # only the end of the line is missing
                elif not line.endswith(b"\n") and line.startswith(b"{"):
                    os.truncate(path, file.tell() - len(line))
                else:
                    raise InvalidParameter(
                        f"{path} has something else than an answer in line {number}; choose another output file."
                    )


def _plain(line: bytes, number: int, params: SamplingParams) -> Task:
    try:
        return Task(number, line.decode(), params=params)
    except UnicodeDecodeError as error:
        return Task(number, error=f"Line {number} is not UTF-8 ({error.reason} at byte {error.start}).")


def _record(line: bytes, number: int, defaults: Mapping[str, Any]) -> Task:
    record = _json(line)
    if not isinstance(record, dict):
        return Task(number, error=f"Line {number} is not a JSON object: {line[:60].decode(errors='replace')}")
    own = record.pop("id", number)
    if not isinstance(own, (str, int)) or isinstance(own, bool):
        return Task(number, error=f"Line {number} has the id {own!r:.60}; an id is a string or an integer.")
    prompt, messages = record.pop("prompt", None), record.pop("messages", None)
    if (prompt is None) == (messages is None):
        return Task(own, error=f"Line {number} must have either a prompt or messages.")
    if not isinstance(prompt, (str, list, type(None))) or not isinstance(messages, (list, type(None))):
        return Task(own, error=f"Line {number}: prompt is a text or token ids, and messages a list.")
    if unknown := sorted(record.keys() - _PARAMS):
        return Task(own, error=f"Line {number} has the unknown field {unknown[0]!r}.")
    if isinstance(record.get("stop"), str):
        record["stop"] = [record["stop"]]
    try:
        params = msgspec.convert({**defaults, **record}, SamplingParams, str_keys=True)
    except (msgspec.ValidationError, ClientError) as error:
        return Task(own, error=f"Line {number}: {error}")
    return Task(own, prompt, messages, params)


def _json(line: bytes) -> Any:
    """The value, or None for what is no JSON."""
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return None


def _key(own: Id) -> str:
    """1 and "1" are different ids."""
    return repr(own)


def _scored(sample: TokenSample) -> dict[str, Any]:
    return {"token": sample.token, "logprob": sample.logprob, "top": dict(sample.top)}
