"""How a measurement goes, on a terminal's error stream: one line that is drawn anew, or a line now and then in a log.

Drawn by hand and seldom: what draws in a thread of its own takes the time that it shows. Knows counts, not how they
came about.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable
from types import TracebackType
from typing import IO, TYPE_CHECKING, Self

from octavo.bench.shown import show
from octavo.bench.words import printable

if TYPE_CHECKING:
    from octavo.bench.client import Progress

__all__ = ["Live"]

DRAWN_S = 0.5
LOGGED_S = 10.0


class Live:
    """Shows what is told to it. `quiet`: nothing but what `say` is given, and not that either."""

    def __init__(
        self, file: IO[str], *, quiet: bool = False, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._file = file
        self._quiet = quiet
        self._now = now
        self._drawn_at: float | None = None
        self._line = False
        """A line that is not ended stands on the terminal."""
        self._title = ""
        self._requests: int | None = None
        self._span_s: float | None = None
        self._tokens: tuple[float, int] = (0.0, 0)
        self._terminal = file.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def begin(self, title: str, *, requests: int | None = None, span_s: float | None = None) -> None:
        """A run begins: of so many requests, or sending for so long, as far as that is known before."""
        self._title, self._requests, self._span_s = title, requests, span_s
        self._tokens = (0.0, 0)
        self._drawn_at = None if self._terminal else self._now()

    def say(self, text: str) -> None:
        """A line that stays."""
        if not self._quiet:
            self.clear()
            self._write(printable(text) + "\n")

    def update(self, counts: Progress) -> None:
        """Called often; shown seldom."""
        now = self._now()
        every = DRAWN_S if self._terminal else LOGGED_S
        if self._quiet or (self._drawn_at is not None and now - self._drawn_at < every):
            return
        self._drawn_at = now
        parts = self._parts(counts)
        if not self._terminal:
            self._write(", ".join(parts) + "\n")
        else:
            self._write("\r" + _fitting(parts, shutil.get_terminal_size().columns - 1) + "\x1b[K")
            self._line = True

    def clear(self) -> None:
        """The line that is drawn goes."""
        if self._line:
            self._line = False
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        """A terminal that was closed, or a reader that has gone, costs no measurement."""
        try:
            self._file.write(text)
            self._file.flush()
        except OSError:
            self._quiet = True

    def _parts(self, counts: Progress) -> list[str]:
        """The most important first."""
        of = f" of {self._requests}" if self._requests is not None else ""
        parts = [
            f"{self._title}: {counts.offered}{of} sent",
            f"{counts.running} running",
            f"{counts.done} done",
        ]
        if failed := counts.errors.total():
            parts.append(f"{failed} failed")
        before_s, before = self._tokens
        if counts.elapsed_s > before_s:
            parts.append(f"{(counts.output_tokens - before) / (counts.elapsed_s - before_s):.0f} tokens/s")
            self._tokens = counts.elapsed_s, counts.output_tokens
        if counts.recent_ttft_s:
            parts.append(f"TTFT {show('ttft', statistics.median(counts.recent_ttft_s))}")
        if (left := self._left_s(counts)) is not None:
            parts.append(f"{left:.0f} s left" if left > 0 else "waiting for the last answers")
        parts.append(f"{show('lag', max(0, counts.late_us) / 1e6)} late")
        return parts

    def _left_s(self, counts: Progress) -> float | None:
        """Until the last request is sent."""
        if self._span_s is not None:
            return max(0.0, self._span_s - counts.elapsed_s)
        if self._requests is None or not counts.done:
            return None
        return (self._requests - counts.done) * counts.elapsed_s / counts.done


def _fitting(parts: list[str], width: int) -> str:
    text = parts[0]
    for part in parts[1:]:
        if len(text) + 2 + len(part) > width:
            break
        text += ", " + part
    return text[: max(0, width)]
