"""The step log: everything a scheduler learned and decided, one JSON line an event. Knows no backend.

A log holds runs, one for each engine that wrote to it: a file that is there is continued, since what an engine wrote
before it died is what the log is for. A run begins with a head (format, scheduler settings, token bytes, so that the
log stands alone); then, in the order in which they happened, `Scheduled` for each schedule and `Committed` for each
commit. A log holds prompts and answers as token ids: treat it like them.
"""

from __future__ import annotations

import fcntl
import logging
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, get_args

import msgspec

from octavo.backends.base import Plan, Samples, TokenSample
from octavo.errors import ClientError, ModelError, SettingsError
from octavo.scheduling.inputs import Inputs
from octavo.scheduling.scheduler import SchedulerConfig
from octavo.text.vocabulary import Vocabulary

__all__ = ["Committed", "Cut", "Head", "Scheduled", "StepLog", "read_log"]

_log = logging.getLogger(__name__)

FORMAT = 2
_MAX_PIECES_BYTES = 64 << 20
"""Of a vocabulary; a million tokens of 16 bytes have a third of that."""
_MAX_LINE_BYTES = 256 << 20
"""Of an event; a step that opens 64 sequences of 128,000 tokens has a fifth of that."""


class Head(msgspec.Struct, frozen=True, tag="head"):
    """How to build the scheduler that wrote the log."""

    format: int
    config: SchedulerConfig
    pieces: bytes
    """zlib over msgpack of the vocabulary's (pieces, special ids)."""

    def vocabulary(self) -> Vocabulary:
        """Raises zlib.error, ValueError or msgspec.MsgspecError for damaged pieces."""
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(self.pieces, _MAX_PIECES_BYTES)
        if not unpacker.eof:
            raise ValueError("its pieces are cut off, or unpack to more than any vocabulary has")
        pieces, special = msgspec.msgpack.decode(data, type=tuple[tuple[bytes, ...], tuple[int, ...]])
        return Vocabulary(pieces, frozenset(special))


class Scheduled(msgspec.Struct, frozen=True, tag="schedule"):
    """What went into a `schedule` call and the plan that came out."""

    inputs: Inputs
    plan: Plan


class Committed(msgspec.Struct, frozen=True, tag="commit"):
    """What went into a `commit` call."""

    step: int
    samples: tuple[TokenSample, ...]


class Cut(msgspec.Struct, frozen=True):
    """A run's last line is not whole: its engine died, or is still writing."""

    line: int


_Event = Head | Scheduled | Committed
_decoder = msgspec.json.Decoder(_Event)
_Damage = msgspec.DecodeError | UnicodeDecodeError | ClientError | RecursionError
"""Parameters check themselves when they are read, hence ClientError."""


class StepLog:
    """Adds a run to a log. Each event is flushed: a log is wanted most after a crash.

    Raises SettingsError for a file that holds something else or that another engine writes, OSError for one that
    cannot be written. A disk that is full later ends the log with a warning, not the engine.
    """

    def __init__(self, path: str | Path, config: SchedulerConfig, vocabulary: Vocabulary) -> None:
        self._path = Path(path)
        self._encoder = msgspec.json.Encoder()
        pieces = msgspec.msgpack.encode((vocabulary.pieces, sorted(vocabulary.special)))
        head = self._encoder.encode(Head(FORMAT, config, zlib.compress(pieces)))
        self._file: BinaryIO | None = _opened(self._path)
        try:
            end = _end_of_log(self._path, self._file)
            self._file.write(end + head + b"\n")
            self._file.flush()
        except BaseException:
            self.close()
            raise

    def scheduled(self, inputs: Inputs, plan: Plan) -> None:
        self._write(Scheduled(inputs, plan))

    def committed(self, step: int, samples: Samples) -> None:
        self._write(Committed(step, samples))

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # told by the write that failed; its bytes are still in the buffer
                self._file.close()
            self._file = None

    def _write(self, event: Scheduled | Committed) -> None:
        if self._file is None:
            return
        try:
            self._file.write(self._encoder.encode(event) + b"\n")
            self._file.flush()
        except OSError as error:
            _log.warning("The step log %s ends here: %s.", self._path, error.strerror)
            self.close()


def _opened(path: Path) -> BinaryIO:
    if path.exists() and not path.is_file():
        raise SettingsError(f"step_log {path} is not a regular file; choose another.")
    file = path.open("a+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise SettingsError(f"step_log {path} is being written by another engine; choose another.") from None
    return file


def _end_of_log(path: Path, file: BinaryIO) -> bytes:
    """What must stand between the file's bytes and a new head. Raises SettingsError unless they are a log."""
    file.seek(0)
    first = file.readline(_MAX_LINE_BYTES)
    if not first:
        return b""
    head = _decoded(first)
    if not isinstance(head, Head) or head.format != FORMAT:
        raise SettingsError(
            f"step_log {path} holds something else than a step log of this version; choose another."
        )
    file.seek(-1, 2)
    return b"" if file.read(1) == b"\n" else b"\n"  # a line that was cut off ends here


def read_log(path: str | Path) -> Iterator[Head | Scheduled | Committed | Cut]:
    """The events of a log, run by run. A run's last line that was cut off comes as `Cut`; other damage is a
    ModelError."""
    try:
        with Path(path).open("rb") as file:
            yield from _events(path, file)
    except OSError as error:
        raise ModelError(f"The step log {path} cannot be read: {error.strerror}.") from None


def _events(path: str | Path, file: BinaryIO) -> Iterator[Head | Scheduled | Committed | Cut]:
    damaged: ModelError | None = None
    number, last = 0, b""
    while line := file.readline(_MAX_LINE_BYTES):
        number, last = number + 1, line
        event = _decoded(line)
        if isinstance(event, Head) and event.format != FORMAT:
            raise ModelError(f"{path} has step log format {event.format}; this version reads {FORMAT}.")
        if number == 1 and not isinstance(event, Head):
            raise ModelError(f"{path} does not begin as a step log does; is it a step log of this version?")
        if damaged is not None:  # the line before
            if not isinstance(event, Head):
                raise damaged
            yield Cut(number - 1)
            damaged = None
        if isinstance(event, _Damage):
            damaged = ModelError(
                f"Line {number} of {path} is damaged ({event}); is it a step log of this version?"
            )
        else:
            yield event
    if damaged is not None:
        if last.endswith(b"\n"):
            raise damaged
        yield Cut(number)


def _decoded(line: bytes) -> Head | Scheduled | Committed | _Damage:
    """The event, or why it is none."""
    try:
        return _decoder.decode(line)
    except get_args(_Damage) as error:
        damage: _Damage = error
        return damage
