"""How far a run of many requests has come, on a terminal. Knows counts, not what is counted."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import rich.progress

__all__ = ["RequestProgress"]


class RequestProgress:
    """Requests done and tokens made, as a bar on stderr; nothing where it is not a terminal or not `shown`."""

    def __init__(self, total: int, *, shown: bool = True) -> None:
        self._total = total
        self._tokens = 0
        self._bar: rich.progress.Progress | None = None
        if shown and sys.stderr.isatty():
            from rich import progress
            from rich.console import Console

            self._bar = progress.Progress(
                progress.MofNCompleteColumn(),
                progress.BarColumn(),
                progress.TextColumn("{task.fields[tokens]} tokens, {task.fields[rate]:.0f}/s"),
                progress.TimeRemainingColumn(),
                console=Console(stderr=True),
            )

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("", total=self._total, tokens=0, rate=0.0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def add(self, tokens: int = 0) -> None:
        """One more is done, which made so many tokens."""
        if self._bar is None:
            return
        self._tokens += tokens
        rate = self._tokens / max(time.monotonic() - self._began, 1e-3)
        self._bar.update(self._task, advance=1, tokens=self._tokens, rate=rate)
