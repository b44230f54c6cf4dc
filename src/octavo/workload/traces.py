"""Files of requests that were really sent: their formats and what can be wrong in them. Knows no workload.

Formats: Azure 2023 and 2024 (CSV), BurstGPT (CSV), Mooncake (JSONL), ShareGPT (JSON), plain JSONL; each may be
gzipped. All but ShareGPT, which is one JSON value, are read line by line.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, NoReturn

import msgspec

from octavo.errors import WorkloadError
from octavo.workload.request import Part

__all__ = ["HASH_TOKENS", "Record", "estimated_tokens", "format_of", "read_trace"]

HASH_TOKENS = 512
"""Of a Mooncake block."""
_MAX_LINE = 64 << 20
_MAX_TOKENS = 100_000_000


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a trace. None for what the trace does not say."""

    line: int
    time_us: int | None = None
    """Since the first request."""
    parts: tuple[Part, ...] = ()
    """Keys are equal within the trace where tokens are."""
    ids: tuple[int, ...] | None = None
    text: str | None = None
    messages: tuple[dict[str, Any], ...] | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    tenant: str | None = None
    priority: int | None = None
    session: int | None = None
    turn: int | None = None
    after: int | None = None
    delay_s: float = 0.0
    follows: bool = False
    """It is the next turn of the record before it."""


def estimated_tokens(text: str) -> int:
    """About as many as tokenizers make of English: one for 4 bytes, at least 1."""
    return max(1, -(-len(text.encode()) // 4))


def format_of(path: Path) -> str:
    """Seen from the first bytes. Raises WorkloadError for what is none of the formats."""
    with _opened(path) as file:
        first = file.readline(1 << 16).strip().removeprefix("\ufeff")
        while not first and (more := file.readline(1 << 16)):
            first = more.strip()
    if not first:
        raise WorkloadError(f"{path} is empty; a trace has at least one request.")
    if first.startswith("["):
        return "sharegpt"
    if first.startswith("{"):
        return "mooncake" if '"hash_ids"' in first else "jsonl"
    columns = {name.strip() for name in first.split(",")}
    if {"ContextTokens", "GeneratedTokens"} & columns:
        return "azure"
    if {"Request tokens", "Response tokens"} & columns:
        return "burstgpt"
    raise WorkloadError(
        f"{path} begins with {first[:60]!r}, which is no trace that is known; it may be Azure's or BurstGPT's CSV, "
        "Mooncake's or plain JSONL, or ShareGPT's JSON."
    )


def read_trace(path: Path, kind: str = "auto") -> Iterator[Record]:
    """The records in order; their times never go back. Raises WorkloadError with the line; OSError."""
    readers: dict[str, Callable[[Path], Iterator[Record]]] = {
        "azure": _read_azure,
        "burstgpt": _read_burstgpt,
        "mooncake": _read_mooncake,
        "sharegpt": _read_sharegpt,
        "jsonl": _read_jsonl,
    }
    reader = readers[format_of(path) if kind == "auto" else kind]
    start = last = None
    empty = True
    for record in reader(path):
        empty = False
        if record.time_us is not None:
            if last is not None and record.time_us < last:
                _bad(
                    path,
                    record.line,
                    f"is {(last - record.time_us) / 1e6:g} s before the request above",
                    "sort by time",
                )
            last = record.time_us
            start = last if start is None else start
            record = msgspec.structs.replace(record, time_us=last - start)
        yield record
    if empty:
        raise WorkloadError(f"{path} has no requests; a trace has at least one.")


def _read_azure(path: Path) -> Iterator[Record]:
    for line, row in _rows(path, ("TIMESTAMP", "ContextTokens", "GeneratedTokens")):
        time = _date_us(path, line, "TIMESTAMP", row["TIMESTAMP"])
        asked = _count(path, line, "ContextTokens", row["ContextTokens"])
        said = _count(path, line, "GeneratedTokens", row["GeneratedTokens"])
        if asked and said:
            yield Record(line=line, time_us=time, parts=(Part(f"line/{line}", asked),), output_tokens=said)


def _read_burstgpt(path: Path) -> Iterator[Record]:
    for line, row in _rows(path, ("Timestamp", "Request tokens", "Response tokens")):
        time = _seconds_us(path, line, "Timestamp", row["Timestamp"])
        asked = _count(path, line, "Request tokens", row["Request tokens"])
        said = _count(path, line, "Response tokens", row["Response tokens"])
        if asked and said:  # a failure has no answer
            yield Record(line=line, time_us=time, parts=(Part(f"line/{line}", asked),), output_tokens=said)


def _read_mooncake(path: Path) -> Iterator[Record]:
    for line, item in _objects(path):
        for name in ("timestamp", "input_length", "output_length", "hash_ids"):
            if name not in item:
                _bad(
                    path,
                    line,
                    f"has no {name}",
                    "Mooncake's lines have timestamp, input_length, output_length, hash_ids",
                )
        time = _seconds_us(path, line, "timestamp", item["timestamp"], per_second=1000)
        asked = _count(path, line, "input_length", item["input_length"], least=1)
        said = _count(path, line, "output_length", item["output_length"], least=1)
        hashes = item["hash_ids"]
        if not isinstance(hashes, list) or not all(type(one) is int for one in hashes):
            _bad(path, line, f"hash_ids is {hashes!r:.60}", "it must be a list of whole numbers")
        if len(hashes) > -(-asked // HASH_TOKENS):
            _bad(
                path,
                line,
                f"hash_ids has {len(hashes)} blocks of {HASH_TOKENS} for input_length {asked}",
                "check both",
            )
        parts = [
            Part(f"hash/{one}", min(HASH_TOKENS, asked - place * HASH_TOKENS))
            for place, one in enumerate(hashes)
        ]
        if (rest := asked - HASH_TOKENS * len(hashes)) > 0:  # some writers leave the last, partial block out
            parts.append(Part(f"line/{line}", rest))
        yield Record(line=line, time_us=time, parts=tuple(parts), output_tokens=said)


class _Turn(msgspec.Struct):
    value: str
    speaker: str = msgspec.field(name="from")


class _Conversation(msgspec.Struct):
    conversations: list[_Turn] = msgspec.field(default_factory=list)


def _read_sharegpt(path: Path) -> Iterator[Record]:
    with _opened(path) as file:
        text = file.read()
    if not text.strip():
        raise WorkloadError(f"{path} is empty; a trace has at least one request.")
    try:
        found = msgspec.json.decode(text, type=list[_Conversation])
    except msgspec.DecodeError as error:
        raise WorkloadError(
            f"{path} cannot be read as ShareGPT's JSON: {error}; it is a list of objects with `conversations`, "
            "each a list of objects with `from` and `value`."
        ) from None
    roles = {"human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant",
             "bard": "assistant", "assistant": "assistant", "system": "system"}  # fmt: skip
    for number, conversation in enumerate(found, 1):
        before: list[dict[str, Any]] = []
        turns = 0
        for turn in conversation.conversations:
            role = roles.get(turn.speaker)
            if role is None or not turn.value.strip():
                break  # what follows makes no sense without it
            if role == "assistant" and before and before[-1]["role"] == "user":
                yield Record(
                    line=number,
                    messages=tuple(before),
                    input_tokens=None,
                    output_tokens=estimated_tokens(turn.value),
                    turn=turns,
                    follows=turns > 0,
                )
                turns += 1
            elif role == "assistant":
                break  # it answers nobody
            before.append({"role": role, "content": turn.value})


_PLAIN = ("index", "at_s", "after", "delay_s", "tenant", "priority", "session", "turn", "prompt", "messages", "parts",
          "input_tokens", "output_tokens", "max_tokens", "id")  # fmt: skip


def _read_jsonl(path: Path) -> Iterator[Record]:
    for count, (line, item) in enumerate(_objects(path)):
        for name in item:
            if name not in _PLAIN:
                close = difflib.get_close_matches(name, _PLAIN, 1)
                _bad(
                    path,
                    line,
                    f"has the unknown field {name!r:.60}",
                    f"did you mean {close[0]}?" if close else "leave it out",
                )
        given = [name for name in ("prompt", "messages", "parts") if item.get(name) is not None]
        if len(given) != 1:
            _bad(
                path,
                line,
                f"has {' and '.join(given) or 'no prompt'}",
                "give one of prompt, messages and parts",
            )
        prompt, output = item.get("prompt"), item.get("output_tokens", item.get("max_tokens"))
        try:
            record = msgspec.convert(
                {
                    "line": line,
                    "text": prompt if isinstance(prompt, str) else None,
                    "ids": None if isinstance(prompt, str) else prompt,
                    **{name: item[name] for name in ("messages", "parts") if item.get(name) is not None},
                    **{
                        name: item[name]
                        for name in (
                            "after",
                            "delay_s",
                            "tenant",
                            "priority",
                            "session",
                            "turn",
                            "input_tokens",
                        )
                        if item.get(name) is not None
                    },
                },
                Record,
            )
        except msgspec.ValidationError as error:
            _bad(path, line, str(error), "see docs/workloads.md")
        if record.text == "" or record.ids == () or record.messages == ():
            _bad(path, line, "has an empty prompt", "leave the line out")
        if record.after is not None and not 0 <= record.after < count:
            _bad(path, line, f"after is {record.after}", "it must be the place, from 0, of a request above")
        if record.delay_s < 0:
            _bad(path, line, f"delay_s is {record.delay_s:g}", "it must not be negative")
        at = item.get("at_s")
        yield msgspec.structs.replace(
            record,
            time_us=None if at is None else _seconds_us(path, line, "at_s", at),
            output_tokens=None if output is None else _count(path, line, "output_tokens", output, least=1),
        )


def _opened(path: Path) -> IO[str]:
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    # Whoever asks for it closes it.
    if packed:
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    number = 0
    with _opened(path) as file:
        try:
            while line := file.readline(_MAX_LINE):
                number += 1
                if len(line) == _MAX_LINE:
                    _bad(
                        path,
                        number,
                        f"has more than {_MAX_LINE >> 20} million characters",
                        "is this a trace?",
                    )
                yield number, line
        except UnicodeDecodeError:
            _bad(path, number + 1, "or one soon after it is not UTF-8", "convert the file")
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            _bad(path, number + 1, f"cannot be unpacked ({error})", "the file is damaged or cut off")


def _rows(path: Path, needed: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    lines = _lines(path)
    reader = csv.reader(text for _, text in lines)
    try:
        header = [" ".join(name.split()) for name in next(reader, [])]
        if not header:
            raise WorkloadError(f"{path} is empty; a trace has at least one request.")
        for name in needed:
            if name not in header:
                raise WorkloadError(
                    f"{path}, line 1, has no column {name}; it has {', '.join(header):.80}, "
                    f"and needs {', '.join(needed)}."
                )
        for row in reader:
            if row and len(row) < len(header):
                missing = header[len(row)]
                _bad(path, reader.line_num, f"ends before the column {missing}", "the file may be cut off")
            if row:
                yield reader.line_num, dict(zip(header, row, strict=False))
    except csv.Error as error:
        _bad(path, reader.line_num, f"is no CSV ({error})", "check the file")


def _objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            item = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            _bad(path, number, f"is no JSON ({error})", "the file may be cut off")
        if not isinstance(item, dict):
            _bad(path, number, f"is {line.strip()[:60]}", "each line is an object")
        yield number, item


def _count(path: Path, line: int, field: str, value: Any, least: int = 0) -> int:
    if isinstance(value, str):
        text = value.strip()
        number = int(text) if text.isascii() and text.lstrip("-").isdigit() and len(text) < 20 else None
    else:
        number = value if type(value) is int else None
    if number is None or not least <= number <= _MAX_TOKENS:
        _bad(
            path,
            line,
            f"{field} is {value!r:.40}",
            f"it must be a whole number from {least} to {_MAX_TOKENS}",
        )
    return number


def _seconds_us(path: Path, line: int, field: str, value: Any, per_second: int = 1) -> int:
    try:
        number = float(value) if not isinstance(value, bool) else -1.0
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number <= 1e15:
        unit = "seconds" if per_second == 1 else "milliseconds"
        _bad(path, line, f"{field} is {value!r:.40}", f"it must be a number of {unit} that is not negative")
    return round(number * (1_000_000 // per_second))


def _date_us(path: Path, line: int, field: str, value: str) -> int:
    """Microseconds since 1970; more digits (Azure has 7) are rounded down, so that order is kept."""
    try:
        date = datetime.fromisoformat(value.strip())
    except ValueError:
        _bad(path, line, f"{field} is {value!r:.40}", "it must be a time such as 2023-11-16 18:17:03.9799600")
    since = (date if date.tzinfo else date.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _bad(path: Path, line: int, what: str, hint: str) -> NoReturn:
    raise WorkloadError(f"{path}, line {line}: {what}; {hint}.".replace("?.", "?"))
