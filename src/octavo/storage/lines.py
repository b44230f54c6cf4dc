"""Files of lines: read piece by piece, appended to so that no crash leaves half a line. Knows no line's meaning.

A line is forced to the disk before anybody counts it; what a crash cut in two is cut off when the file is opened again.
So the file itself says what is done, and no second record can disagree with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import BinaryIO

from octavo.storage.folder import storing, sync_folder

__all__ = ["LineFile", "lines_of"]

_BOM = b"\xef\xbb\xbf"


def lines_of(path: Path, max_bytes: int) -> Generator[tuple[int, bytes]]:
    """(number from 1, bytes without the end of line) of the lines that are not blank. One longer than `max_bytes` is
    given up to there. Raises ServerError."""
    with storing(path), path.open("rb") as file:
        number = 0
        while line := file.readline(max_bytes + 1):
            number += 1
            if number == 1:
                line = line.removeprefix(_BOM)
            text = line.rstrip(b"\r\n")
            if text.strip():
                yield number, text
            while line and not line.endswith(b"\n"):  # the rest of a line that is too long
                line = file.readline(max_bytes + 1)


class LineFile:
    """Whole lines, appended. Not safe for several threads. Every method raises ServerError for what the disk refuses;
    what was there before stays whole."""

    def __init__(self, path: Path, take: Callable[[bytes], bool]) -> None:
        """Open or make it. `take` is told each line that is there; False: it is damaged, the file ends before it."""
        self.path = path
        self.nbytes = 0
        self.count = 0
        with storing(path):
            self._file: BinaryIO = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", 0)
            try:
                with path.open("rb") as reader:
                    for line in reader:
                        if not line.endswith(b"\n") or not take(line):
                            break
                        self.nbytes += len(line)
                        self.count += 1
                self._file.truncate(self.nbytes)
                self._file.seek(self.nbytes)
                sync_folder(path.parent)
            except BaseException:
                self._file.close()
                raise

    def append(self, lines: list[bytes]) -> None:
        """All of them or none; they are on the disk afterwards."""
        if not lines:
            return
        data = memoryview(b"".join(lines))
        with storing(self.path):
            try:
                view = data
                while view:
                    view = view[self._file.write(view) :]
                os.fdatasync(self._file.fileno())
            except OSError:
                self._file.truncate(self.nbytes)
                self._file.seek(self.nbytes)
                raise
        self.nbytes += len(data)
        self.count += len(lines)

    def close(self) -> None:
        self._file.close()
