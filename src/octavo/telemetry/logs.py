"""Log lines as text or JSON, each with the request that it belongs to. Knows logging, no server and no engine.

What a client has sent stays out of them: no line of ours says a prompt, an answer or a key, and of an exception that
comes up within a request the places are told and not the message, which may quote it (at debug, it is told).
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Literal, TextIO, cast, get_args

__all__ = [
    "FORMAT_VARIABLE",
    "LEVEL_VARIABLE",
    "PRIVATE",
    "REQUEST_ID",
    "LogFormat",
    "LogLevel",
    "configure",
    "configure_child",
    "with_fields",
]

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

FORMAT_VARIABLE, LEVEL_VARIABLE = "OCTAVO_LOG_FORMAT", "OCTAVO_LOG_LEVEL"
"""Where a process that the server starts reads how to log."""

REQUEST_ID: ContextVar[str] = ContextVar("octavo_request_id", default="")
"""The request that is being worked on; "" for none."""

_FIELDS, _PRIVATE = "octavo_fields", "octavo_private"
PRIVATE = {_PRIVATE: True}
"""As `extra` of a line outside of any request, with an exception whose message may quote one all the same."""
_PLAIN = re.compile(r"[\x21\x23-\x3c\x3e-\x7e]+")
"""What stands in a line without quotes: visible ASCII but for " and =."""


def configure(log_format: LogFormat, level: LogLevel, stream: TextIO | None = None) -> None:
    """Send all log lines to `stream` (stderr), those of other libraries from warnings on."""
    own = logging.getLevelNamesMapping()[level.upper()]
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    formatter = _Json if log_format == "json" else _Text
    handler.setFormatter(formatter(quoting=own <= logging.DEBUG))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(max(own, logging.WARNING))
    logging.getLogger("octavo").setLevel(own)
    logging.captureWarnings(True)


def configure_child() -> None:
    """The same for a process that the server has started, which tells by the environment; all defaults without."""
    log_format, level = os.environ.get(FORMAT_VARIABLE, ""), os.environ.get(LEVEL_VARIABLE, "")
    configure(
        cast(LogFormat, log_format if log_format in get_args(LogFormat) else "text"),
        cast(LogLevel, level if level in get_args(LogLevel) else "info"),
    )


def with_fields(**fields: Any) -> dict[str, Any]:
    """As `extra` of a line: what it says in JSON fields, and in text as `name=value`. None and "" are left out."""
    return {_FIELDS: {name: value for name, value in fields.items() if value not in (None, "", [])}}


class _Base(logging.Formatter):
    def __init__(self, *, quoting: bool) -> None:
        """`quoting`: tell the messages of exceptions within requests too."""
        super().__init__()
        self._quoting = quoting

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        """UTC, as RFC 3339 writes it."""
        return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"

    def trace(self, record: logging.LogRecord) -> str:
        """Of the record's exception; "" where it has none."""
        if not record.exc_info or record.exc_info[1] is None:
            return ""
        private = bool(REQUEST_ID.get()) or getattr(record, _PRIVATE, False)
        if self._quoting or not private:
            return "".join(traceback.format_exception(record.exc_info[1])).rstrip("\n")
        return "\n".join(_places(record.exc_info[1]))


class _Text(_Base):
    def format(self, record: logging.LogRecord) -> str:
        fields = {**getattr(record, _FIELDS, {})}
        if request_id := REQUEST_ID.get():
            fields = {"request_id": request_id, **fields}
        parts = [self.formatTime(record), record.levelname, f"{record.name}:", _one_line(record.getMessage())]
        line = " ".join([*parts, *(f"{name}={_value(value)}" for name, value in fields.items())])
        return f"{line}\n{trace}" if (trace := self.trace(record)) else line


class _Json(_Base):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id := REQUEST_ID.get():
            line["request_id"] = request_id
        line.update(getattr(record, _FIELDS, {}))
        if trace := self.trace(record):
            line["exception"] = trace
        return json.dumps(line, ensure_ascii=True, default=str)


def _one_line(text: str) -> str:
    """No message may begin a line that looks like another's."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _value(value: Any) -> str:
    if isinstance(value, Mapping | list | tuple):
        value = ",".join(map(str, value))
    text = json.dumps(value) if isinstance(value, bool) else str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def _places(error: BaseException, above: frozenset[int] = frozenset()) -> Iterator[str]:
    """The traceback of an exception and of what it came from, without their messages."""
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    above = above | {id(error)}
    if before is not None and id(before) not in above:
        yield from _places(before, above)
        yield "which led to:"
    if error.__traceback__ is not None:
        yield "Traceback (most recent call last):"
        yield from _frames(error.__traceback__)
    yield f"{type(error).__module__}.{type(error).__qualname__}: (its message may quote the request; see at debug)"
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield "of which one is:"
            yield from _places(one, above)


def _frames(trace: TracebackType) -> Iterator[str]:
    for frame in traceback.extract_tb(trace):
        yield f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}\n    {frame.line}'
