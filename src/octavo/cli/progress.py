"""Progress of long work on the terminal's error stream. Knows bytes, not what they are."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["ByteProgress"]


_SHORT_BYTES = 10_000_000
"""Less is done before anyone could read a line about it."""


class ByteProgress:
    """Shows `progress(done_bytes, total_bytes, what)`: bars on a terminal, else one line per piece of work.

    Nothing is shown or imported before the first call: most starts find everything done.
    """

    def __init__(self) -> None:
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._announced: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, done_bytes: int, total_bytes: int, what: str) -> None:
        if total_bytes < _SHORT_BYTES:
            return
        if not sys.stderr.isatty():
            if what not in self._announced:
                self._announced.add(what)
                print(f"{what} ({total_bytes / 1e6:.0f} MB)", file=sys.stderr, flush=True)
            return
        if self._bars is None:
            self._bars = _bars()
            self._bars.start()
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(what, total=total_bytes)
        self._bars.update(self._tasks[what], completed=done_bytes, total=total_bytes)


def _bars() -> Progress:
    from rich import progress
    from rich.console import Console

    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
    )
