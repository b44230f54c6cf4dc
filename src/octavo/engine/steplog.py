"""The step log: everything a scheduler learned and decided, one JSON line an event. Knows no backend.

Line 1 is the head (format, scheduler settings, token bytes, so that the log stands alone); then, in the order in
which they happened, `Scheduled` for each schedule and `Committed` for each commit.
A log holds prompts and answers as token ids: treat it like them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from octavo.backends.base import Plan, Samples, TokenSample
from octavo.errors import ModelError
from octavo.scheduling.inputs import Inputs
from octavo.scheduling.scheduler import SchedulerConfig
from octavo.text.vocabulary import Vocabulary

__all__ = ["Committed", "Head", "Scheduled", "StepLog", "read_log"]

FORMAT = 1


class Head(msgspec.Struct, frozen=True, tag="head"):
    """How to build the scheduler that wrote the log."""

    format: int
    policy: str
    config: SchedulerConfig
    pieces: bytes
    """zlib over msgpack of the vocabulary's (pieces, special ids)."""

    def vocabulary(self) -> Vocabulary:
        pieces, special = msgspec.msgpack.decode(
            zlib.decompress(self.pieces), type=tuple[tuple[bytes, ...], tuple[int, ...]]
        )
        return Vocabulary(pieces, frozenset(special))


class Scheduled(msgspec.Struct, frozen=True, tag="schedule"):
    """What went into a `schedule` call and the plan that came out."""

    inputs: Inputs
    plan: Plan


class Committed(msgspec.Struct, frozen=True, tag="commit"):
    """What went into a `commit` call."""

    step: int
    samples: tuple[TokenSample, ...]


class StepLog:
    """Writes a log. Each event is flushed: a log is wanted most after a crash."""

    def __init__(
        self, path: str | Path, policy: str, config: SchedulerConfig, vocabulary: Vocabulary
    ) -> None:
        self._file: BinaryIO = Path(path).open("wb")  # noqa: SIM115 - closed by close()
        self._encoder = msgspec.json.Encoder()
        pieces = msgspec.msgpack.encode((vocabulary.pieces, sorted(vocabulary.special)))
        self._write(Head(FORMAT, policy, config, zlib.compress(pieces)))

    def scheduled(self, inputs: Inputs, plan: Plan) -> None:
        self._write(Scheduled(inputs, plan))

    def committed(self, step: int, samples: Samples) -> None:
        self._write(Committed(step, samples))

    def close(self) -> None:
        self._file.close()

    def _write(self, event: Head | Scheduled | Committed) -> None:
        self._file.write(self._encoder.encode(event) + b"\n")
        self._file.flush()


def read_log(path: str | Path) -> Iterator[Head | Scheduled | Committed]:
    """The events of a log. A last line that was cut off by a crash is left out; other damage is a ModelError."""
    decoder = msgspec.json.Decoder(Head | Scheduled | Committed)
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except OSError as error:
        raise ModelError(f"The step log {path} cannot be read: {error.strerror}.") from None
    for number, line in enumerate(lines[:-1], 1):
        try:
            event = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ModelError(
                f"Line {number} of {path} is not an event of a step log ({error}); is it the right file?"
            ) from None
        if (number == 1) != isinstance(event, Head):
            raise ModelError(f"Line {number} of {path} is out of place; a step log has one head, in line 1.")
        if isinstance(event, Head) and event.format != FORMAT:
            raise ModelError(f"{path} has step log format {event.format}; this version reads {FORMAT}.")
        yield event
