"""A stderr that nobody waits for: a thread writes what is said there. Knows text, not what logs it.

A pipe that its reader has stopped reading takes 64 KiB; the next line that is logged would then stop the event loop or
the step, and with it every stream. Here lines wait in memory, up to a bound, and what is said beyond it is lost and
counted.
"""

from __future__ import annotations

import atexit
import io
import os
import sys
import threading
from contextlib import suppress
from typing import TextIO

__all__ = ["UnblockedStream", "unblock_stderr"]

MOST_CHARACTERS = 1 << 20
"""That may wait."""
END_S = 1.0
"""How long the process' end waits for what is not written yet."""


class UnblockedStream(io.TextIOBase):
    """`write` never waits and never fails. The thread is there from the first text on."""

    def __init__(self, target: TextIO, most: int = MOST_CHARACTERS) -> None:
        self._target = target
        self._most = most
        self._changed = threading.Condition()
        self._waiting: list[str] = []
        self._held = 0
        """Characters that wait or are being written."""
        self._lost = 0
        """Lines."""
        self._thread: threading.Thread | None = None

    def write(self, text: str) -> int:
        with self._changed:
            if self._held + len(text) > self._most:
                self._lost += text.count("\n")
                return len(text)
            self._waiting.append(text)
            self._held += len(text)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="stderr", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return len(text)

    def flush(self) -> None:
        """Nothing: the thread does it."""

    def drain(self, timeout_s: float) -> bool:
        """Wait until all is written; False where that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._held, timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting))
                text = "".join(self._waiting)
                self._waiting.clear()
                lost, self._lost = self._lost, 0
            if lost:
                text += f"{lost} lines were lost here, for stderr was not read.\n"
            # Past the target's own buffer, which would keep what cannot be written, and try again for ever.
            data = memoryview(text.encode(self.encoding, "backslashreplace"))
            with suppress(OSError, ValueError):  # nobody will ever read it, or the disk is full
                while data:
                    data = data[os.write(self._target.fileno(), data) :]
            with self._changed:
                self._held = sum(map(len, self._waiting))
                self._changed.notify_all()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._target.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self._target.errors

    def fileno(self) -> int:
        return self._target.fileno()

    def isatty(self) -> bool:
        return self._target.isatty()

    def writable(self) -> bool:
        return True


def unblock_stderr() -> None:
    """From now on, nothing in this process waits for its stderr; its end does, a moment. Where stderr is not the
    process' own (a test has taken its place), nothing changes."""
    target = sys.stderr
    if not isinstance(target, io.TextIOWrapper) or target is not sys.__stderr__:
        return
    sys.stderr = stream = UnblockedStream(target)
    atexit.register(stream.drain, END_S)
