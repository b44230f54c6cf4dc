"""What was decided and what came of it, as lines of a file: written beside the requests, read to find thresholds.

Knows records and files, no tier. A line is a decision or an outcome, as JSON; no prompt and no answer is in it but
the text that a user gave as the correct one.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from octavo.errors import RoutingError

__all__ = ["Decided", "Outcome", "OutcomeFile", "Source", "read_outcomes"]

_logger = logging.getLogger(__name__)

Source = Literal["thumbs", "score", "correct", "reask", "judge"]
MAX_FILE_BYTES = 256 << 20
"""Then it becomes FILE.1, and a new one begins."""
MOST_WAITING = 10_000
"""Lines that are not written yet; what comes above that is counted and left out."""


class Decided(msgspec.Struct, frozen=True, kw_only=True, tag="decided", omit_defaults=True):
    """One answered request."""

    response_id: str
    time_s: float
    """Seconds since 1970."""
    chosen: str
    """The tier that the request went to first."""
    tier: str
    """Who answered."""
    score: float | None = None
    abstained: bool = False
    policy: str | None = None
    decided: str | None = None
    """The tier that was decided, where exploration took another one."""
    propensity: float = 1.0
    elsewhere: float = 0.0
    cost: float | None = None
    watched: bool = False
    """Had the user asked it again, that would have been seen."""
    key: str | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True, tag="outcome", omit_defaults=True):
    """What one tier's answer was worth, as far as somebody has said."""

    response_id: str
    time_s: float
    tier: str
    source: Source
    good: float
    """0 is bad, 1 is good."""
    correct: str | None = None
    key: str | None = None


Line = Decided | Outcome
_DECODER = msgspec.json.Decoder(Line)


class OutcomeFile:
    """Appends lines from a thread of its own. Whoever adds one never waits."""

    def __init__(self, path: Path) -> None:
        """Raises RoutingError for a file that cannot be written."""
        self.path = path
        self._waiting: queue.Queue[Line | None] = queue.Queue(MOST_WAITING)
        self.lost = 0
        """Lines that could not be written."""
        try:
            with path.open("a+b") as file:
                _drop_cut_line(file)
        except OSError as error:
            raise RoutingError(f"[feedback] outcomes: {path} cannot be written: {error.strerror}.") from None
        self._thread = threading.Thread(target=self._write, name="octavo-outcomes", daemon=True)
        self._thread.start()

    def add(self, line: Line) -> None:
        """It will be written soon."""
        try:
            self._waiting.put_nowait(line)
        except queue.Full:
            self.lost += 1

    def close(self) -> None:
        """When all is written."""
        self._waiting.put(None)
        self._thread.join()

    def _write(self) -> None:
        ended = False
        while not ended:
            lines = [self._waiting.get()]
            while len(lines) < MOST_WAITING and not self._waiting.empty():
                lines.append(self._waiting.get())
            ended = None in lines
            kept = [line for line in lines if line is not None]
            data = b"".join(msgspec.json.encode(line) + b"\n" for line in kept)
            try:
                if self.path.exists() and self.path.stat().st_size + len(data) > MAX_FILE_BYTES:
                    self.path.replace(self.path.with_name(self.path.name + ".1"))
                with self.path.open("ab") as file:
                    file.write(data)
            except OSError as error:
                self.lost += len(kept)
                _logger.error("outcomes were not written to %s: %s", self.path, error.strerror)


def _drop_cut_line(file: BinaryIO) -> None:
    """The last line, where whoever wrote it was stopped in its middle: what follows would not be a line either."""
    end = file.seek(0, 2)
    while end:
        start = max(end - 65_536, 0)
        file.seek(start)
        place = file.read(end - start).rfind(b"\n")
        if place >= 0 or not start:
            file.truncate(start + place + 1)
            return
        end = start


def read_outcomes(path: Path) -> tuple[dict[tuple[str | None, str], Decided], list[Outcome]]:
    """Decisions by key and response, and outcomes, the file before this one first. A last line that was cut off is
    left out. Raises RoutingError."""
    decided: dict[tuple[str | None, str], Decided] = {}
    outcomes: list[Outcome] = []
    for one in (path.with_name(path.name + ".1"), path):
        if one != path and not one.exists():
            continue
        for line in _lines(one):
            if isinstance(line, Decided):
                decided[line.key, line.response_id] = line
            else:
                outcomes.append(line)
    return decided, outcomes


def _lines(path: Path) -> Iterable[Line]:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise RoutingError(f"The outcomes {path} cannot be read: {error.strerror}.") from None
    lines = raw.split(b"\n")
    whole = lines.pop()  # "" where the file ends with a line
    if whole:
        _logger.warning("the last line of %s is cut off and left out", path)
    for number, line in enumerate(lines, 1):
        try:
            yield _DECODER.decode(line)
        except msgspec.MsgspecError as error:
            raise RoutingError(
                f"{path}, line {number}, is neither a decision nor an outcome: {error}."
            ) from None
