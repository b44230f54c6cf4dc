"""Files of prompts and of answers, one record a line. Knows their shape, and no model.

In: JSONL objects with `prompt` or `messages`, any of SamplingParams' fields, and an `id`; or plain lines, each a
prompt. Out: `{"id", "text", "finish_reason", …, "request_hash"}`, with `choices` for n > 1, or `{"id", "error"}`.
"""

from __future__ import annotations

import codecs
import fcntl
import hashlib
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Self

import msgspec

from octavo.errors import ClientError, InvalidParameter
from octavo.sampling.params import SamplingParams

if TYPE_CHECKING:
    from octavo.backends.base import TokenSample
    from octavo.llm import Request, RequestOutput

__all__ = ["AnswerFile", "Task", "answer_record", "read_tasks"]

Id = str | int

_PARAMS = frozenset(SamplingParams.__struct_fields__)
_ANSWERS = frozenset({"text", "choices"})
"""One of these is in every record that answers."""
_PLAIN_PARAMS = msgspec.structs.asdict(SamplingParams())

_MAX_PROMPT_BYTES = 64 << 20
_MAX_ANSWER_BYTES = 256 << 20
"""Of a line. The longest true ones have a tenth; what is no file of lines would fill the memory."""


@dataclass(frozen=True)
class Task:
    """What one line asks for. `error`: the line cannot be used, and why."""

    id: Id
    prompt: Any = None
    """A text or token ids."""
    messages: Any = None
    params: SamplingParams | None = None
    error: str | None = None
    request_hash: str = ""
    """Of all that decides the answer, but for the seed where none was given."""


def read_tasks(
    file: BinaryIO, defaults: Mapping[str, Any], *, model: str, jsonl: bool | None, chat: bool
) -> list[Task]:
    """The tasks in a file; a bad line becomes a task with an error, an endless one is an InvalidParameter.

    `defaults`: SamplingParams' fields for lines that do not give them. `model`: as it was named; it is part of the
    hash. `jsonl` None: they are records when the first line begins with a brace. `chat`: a plain line, or a record's
    `prompt`, is a user's message. A record without an `id` has the number of its line.
    """
    fallback, guessed = SamplingParams(**defaults), jsonl is None
    tasks: list[Task] = []
    seen: dict[str, int] = {}
    for number, line in _lines(file):
        if jsonl is None:
            jsonl = line.lstrip().startswith(b"{")
        task = _record(line, number, defaults) if jsonl else _plain(line, number, fallback)
        if guessed and not jsonl and _is_record(line):
            task = Task(
                number,
                error=f"Line {number} is a record, and the first line is plain; say what they are: --lines or --jsonl.",
            )
        if (first := seen.setdefault(_key(task.id), number)) != number:
            task = Task(task.id, error=f"Line {number} has the id of line {first}; ids must differ.")
        if chat and isinstance(task.prompt, str):
            task = Task(task.id, None, [{"role": "user", "content": task.prompt}], task.params)
        tasks.append(task if task.error else replace(task, request_hash=_request_hash(task, model)))
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
        "request_hash": task.request_hash,
    }


class AnswerFile:
    """Records appended to a file, or (None) to standard output. A regular file that is there is continued.

    `done` tells what it holds. A last line that an interruption tore is taken away. Raises InvalidParameter for a
    file with other things in it, or that another process writes; OSError, with its name, for one that cannot be
    written.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._answers: dict[str, str] = {}
        self._errors: set[tuple[str, str]] = set()
        self._file: IO[bytes] = sys.stdout.buffer
        self.answered = 0
        """Answers written."""
        self.failed = 0
        """Errors written, or there already and not written twice."""

    def __enter__(self) -> Self:
        if self._path is not None:
            if self.continues:
                self._file = self._path.open("a+b")
                try:
                    self._resume(self._path, self._file)
                except BaseException:
                    self._file.close()
                    raise
            else:
                self._file = self._path.open("wb")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._path is None:
            return
        try:
            with self._named_errors():
                self._file.close()
        except OSError:
            if error is None:  # else it is the same trouble again
                raise

    @property
    def continues(self) -> bool:
        """Another run can go on from what is written: it is no pipe, no device, no standard output."""
        return self._path is not None and (self._path.is_file() or not self._path.exists())

    def done(self, task: Task) -> bool:
        """The file has the answer. An error is none: it is tried again. Raises InvalidParameter when the answer
        under this id is to another request."""
        found = self._answers.get(_key(task.id))
        if found is None or task.error is not None:
            return False
        if found != task.request_hash:
            raise InvalidParameter(
                f"{self._path} has an answer with the id {task.id!r:.80} to another request (the prompt, a parameter "
                "or the model differs); choose another output file, or ask as before."
            )
        return True

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one line, at once."""
        if "error" in record:
            self.failed += 1
            if (_key(record["id"]), record["error"]) in self._errors:
                return
        with _uninterrupted(), self._named_errors():
            self._file.write(msgspec.json.encode(record) + b"\n")
            self._file.flush()
            self.answered += "error" not in record

    def _resume(self, path: Path, file: IO[bytes]) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidParameter(
                f"{path} is being written by another octavo generate; wait for it, or choose another output file."
            ) from None
        file.seek(0)
        number = end = 0
        while line := file.readline(_MAX_ANSWER_BYTES):
            number += 1
            whole = line.endswith(b"\n")
            record = _json(line)
            if isinstance(record, dict) and self._remember(record):
                if not whole:  # only the end of the line is missing
                    file.write(b"\n")
            elif not whole and line.startswith(b"{") and len(line) < _MAX_ANSWER_BYTES:
                file.truncate(end)
            else:
                raise InvalidParameter(
                    f"{path} has something else than an answer in line {number}; choose another output file."
                )
            end += len(line)

    def _remember(self, record: dict[str, Any]) -> bool:
        """False for what is no record of ours."""
        match record:
            case {"id": str() | int() as own, "error": str(error)}:
                self._errors.add((_key(own), error))
            case {"id": str() | int() as own, "request_hash": str(found), **rest} if rest.keys() & _ANSWERS:
                self._answers[_key(own)] = found
            case _:
                return False
        return True

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """A write's error does not say which file it was."""
        try:
            yield
        except OSError as error:
            name = "standard output" if self._path is None else str(self._path)
            raise OSError(error.errno, error.strerror, name) from None


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C waits until the end: what is written is also counted, and no line is torn. For the main thread."""
    asked = []
    before = signal.signal(signal.SIGINT, lambda number, frame: asked.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if asked:
        raise KeyboardInterrupt


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, numbered from 1, without their ends and a byte order mark."""
    number = 0
    while line := file.readline(_MAX_PROMPT_BYTES):
        number += 1
        if len(line) == _MAX_PROMPT_BYTES:
            raise InvalidParameter(
                f"Line {number} has more than {_MAX_PROMPT_BYTES >> 20} MiB; is this a file of prompts?"
            )
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if line.strip():
            yield number, line.rstrip(b"\r\n")


def _plain(line: bytes, number: int, params: SamplingParams) -> Task:
    try:
        return Task(number, line.decode(), params=params)
    except UnicodeDecodeError as error:
        return _not_utf8(number, error)


def _not_utf8(number: int, error: UnicodeDecodeError) -> Task:
    return Task(number, error=f"Line {number} is not UTF-8 ({error.reason} at byte {error.start}).")


def _record(line: bytes, number: int, defaults: Mapping[str, Any]) -> Task:
    record = _json(line)
    if not isinstance(record, dict):
        try:
            line.decode()
        except UnicodeDecodeError as error:
            return _not_utf8(number, error)
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


def _is_record(line: bytes) -> bool:
    record = _json(line) if line.lstrip().startswith(b"{") else None
    return isinstance(record, dict) and not record.keys().isdisjoint({"prompt", "messages"})


def _json(line: bytes) -> Any:
    """The value, or None for what is no JSON."""
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _request_hash(task: Task, model: str) -> str:
    """Parameters that have their default are left out, so that a later version's new ones change no hash."""
    params = {} if task.params is None else msgspec.structs.asdict(task.params)
    given = {name: value for name, value in params.items() if value != _PLAIN_PARAMS[name]}
    asked = msgspec.to_builtins([model, task.prompt, task.messages, given], str_keys=True)
    return hashlib.sha256(msgspec.json.encode(asked, order="deterministic")).hexdigest()[:16]


def _key(own: Id) -> str:
    """1 and "1" are different ids."""
    return repr(own)


def _scored(sample: TokenSample) -> dict[str, Any]:
    return {"token": sample.token, "logprob": sample.logprob, "top": dict(sample.top)}
