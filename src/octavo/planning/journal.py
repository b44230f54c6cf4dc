"""What was simulated for a plan, kept in a file, so that a search which was interrupted goes on. Knows no search."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import msgspec

from octavo.errors import InvalidParameter
from octavo.planning.trying import Task, Tried

__all__ = ["Journal"]

_FORMAT = "octavo-plan-1"


class _Head(msgspec.Struct, frozen=True):
    format: str
    octavo: str


class _Line(msgspec.Struct, frozen=True):
    key: str
    tried: Tried


class Journal:
    """A line for each task; without a path it is in memory alone."""

    def __init__(self, path: Path | None, octavo: str) -> None:
        """`octavo`: the version that simulates; what another one found is not taken over.

        Raises InvalidParameter for a file that is no journal, and OSError.
        """
        self.known: dict[str, Tried] = {}
        self.taken_over = 0
        """How many outcomes were there from before."""
        self._file: BinaryIO | None = None
        if path is None:
            return
        head = _Head(_FORMAT, octavo)
        whole = self._read(path, head) if path.exists() else 0
        self._file = path.open("r+b" if path.exists() else "w+b")
        self._file.truncate(whole)  # a last line that is not whole, or all that another version wrote
        self._file.seek(whole)
        if not whole:
            self._write(head)
        self.taken_over = len(self.known)

    def get(self, task: Task) -> Tried | None:
        return self.known.get(task.key())

    def put(self, task: Task, tried: Tried) -> None:
        self.known[task.key()] = tried
        if self._file is not None:
            self._write(_Line(task.key(), tried))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, line: _Head | _Line) -> None:
        assert self._file is not None
        self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()

    def _read(self, path: Path, head: _Head) -> int:
        """Take over what is there; how many bytes of it are good."""
        data = path.read_bytes()
        if not data:
            return 0
        first, newline, rest = data.partition(b"\n")
        try:
            found = msgspec.json.decode(first, type=_Head)
        except (msgspec.DecodeError, UnicodeDecodeError):
            found = None
        if found is None or found.format != _FORMAT or not newline:
            raise InvalidParameter(f"{path} is no journal of octavo plan; give another file.")
        if found != head:
            return 0
        good = len(first) + 1
        for line in rest.split(b"\n")[:-1]:
            try:
                one = msgspec.json.decode(line, type=_Line)
            except (msgspec.DecodeError, UnicodeDecodeError):
                break
            self.known[one.key] = one.tried
            good += len(line) + 1
        return good
