"""SIGINT, SIGTERM and SIGHUP while something is measured: the first ends it gently, the second at once.

What was measured until then is worth keeping, whoever ends it: a person with Ctrl-C, a service manager or a scheduler
with SIGTERM, a terminal that was closed with SIGHUP. Knows signals and tasks, and nothing of what is measured.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ["Signals"]


class Signals:
    """Takes the signals while it is entered. Outside a loop a signal raises KeyboardInterrupt, but for a first one
    after `gently`. Within a loop nothing may be raised just anywhere (a callback of the loop's would swallow it): there
    it cancels the task, or is told."""

    def __init__(self) -> None:
        self.number: int | None = None
        """The first that came."""
        self._begun = False
        self._end: tuple[asyncio.AbstractEventLoop, Callable[[], object], asyncio.Task[Any] | None] | None = (
            None
        )
        self._before: dict[int, Any] = {}

    @property
    def code(self) -> int:
        """The exit code of a process that a signal ended, as shells count it."""
        return 128 + (self.number or signal.SIGINT)

    @property
    def hung_up(self) -> bool:
        """Whether the terminal is gone."""
        return self.number is not None and self.number == getattr(signal, "SIGHUP", None)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # no other may take signals
            for name in ("SIGINT", "SIGTERM", "SIGHUP"):
                number = getattr(signal, name, None)
                # Under nohup a closed terminal ends nothing.
                if number is not None and not (
                    name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN
                ):
                    self._before[number] = signal.signal(number, self._came)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def cancels(self) -> None:
        """From now on a signal cancels the running task. To be called in the loop."""
        task = asyncio.current_task()
        assert task is not None
        self._end = (asyncio.get_running_loop(), task.cancel, task)

    def gently(self, stop: Callable[[], None]) -> None:
        """From now on the first signal calls `stop`, and each further one cancels the running task.

        To be called in the loop. After the task, a first signal is noted only: what is left is to write and to tell.
        """
        self._begun = True
        self._end = (asyncio.get_running_loop(), stop, asyncio.current_task())

    def over(self) -> None:
        """The task of `cancels` or `gently` has ended."""
        self._end = None

    def _came(self, number: int, frame: FrameType | None) -> None:
        first, self.number = self.number is None, self.number or number
        if self._end is not None:
            loop, stop, task = self._end
            if first:
                loop.call_soon_threadsafe(stop)
            elif task is not None:
                loop.call_soon_threadsafe(task.cancel)
        elif not (first and self._begun):
            raise KeyboardInterrupt
