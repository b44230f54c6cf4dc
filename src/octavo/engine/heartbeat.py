"""Memory that an engine process shares with its parent: how far a step is, and whose it is. Knows no process.

A step holds the engine's thread, so nothing can be asked of it then, and a process that died answers nothing. Both are
read here: what is written stays, whatever becomes of the writer.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable

__all__ = ["Heartbeat", "Look", "shared_memory"]

_PROGRESS, _BEATS, _EXPECTED_US, _NAMES_BYTES, _WORDS = range(5)
_BYTES = 64 << 10
_FIRST = 64
"""Where names begin; the words before have a cache line of their own."""
_ALL = (1 << 64) - 1
"""Instead of a number of bytes: there are more names than fit."""


def shared_memory() -> int:
    """New memory for a heartbeat, as a file descriptor for both processes."""
    fd = os.memfd_create("octavo-heartbeat")
    os.ftruncate(fd, _BYTES)
    return fd


class Heartbeat:
    """Written by the engine, read by its parent. Words of 64 bits: what the kernels reached, how often a step began or
    ended (odd: one runs), how long it should take, and then the names of the requests that it computes for."""

    def __init__(self, fd: int | None = None) -> None:
        """`fd`: of `shared_memory`, and no longer needed afterwards; None: nobody else looks."""
        self._map = mmap.mmap(-1 if fd is None else fd, _BYTES)
        self._words = memoryview(self._map)[: 8 * _WORDS].cast("Q")

    # ---- the engine's end

    @property
    def progress(self) -> memoryview:
        """One word for the kernels: (step << 16) + layer, stored as they go."""
        return self._words[_PROGRESS : _PROGRESS + 1]

    def begin(self) -> None:
        """A step begins. Nothing is known of it yet."""
        self._words[_BEATS] += 1

    def planned(self, names: Iterable[str], expected_s: float) -> None:
        """It computes for these requests, and should take so long (0: not known)."""
        data = "\n".join(names).encode()
        fits = len(data) <= _BYTES - _FIRST
        if fits:
            self._map[_FIRST : _FIRST + len(data)] = data
        self._words[_EXPECTED_US] = int(expected_s * 1e6)
        self._words[_NAMES_BYTES] = len(data) if fits else _ALL

    def done(self) -> None:
        """It has ended."""
        self._words[_NAMES_BYTES] = 0
        self._words[_BEATS] += 1

    # ---- the parent's end

    @property
    def counter(self) -> tuple[int, int]:
        """Changes while there is progress."""
        return self._words[_PROGRESS], self._words[_BEATS]

    @property
    def layer(self) -> int:
        """That the kernels have reached."""
        return self._words[_PROGRESS] & 0xFFFF

    @property
    def stepping(self) -> bool:
        """A step runs, or ran when the writer died."""
        return self._words[_BEATS] % 2 == 1

    @property
    def expected_s(self) -> float:
        """How long the step should take; 0: not known."""
        return self._words[_EXPECTED_US] * 1e-6

    @property
    def names(self) -> list[str] | None:
        """The requests that the step computes for; None where that is not known: it has not been decided, or there is
        no step."""
        count = self._words[_NAMES_BYTES]
        if not self.stepping or count in (0, _ALL):
            return None
        return self._map[_FIRST : _FIRST + count].decode(errors="replace").split("\n")


class Look:
    """How long a counter has stood still, for somebody who looks at it now and then.

    A gap between two looks that is longer than usual is the looker's own sleep (its process was stopped, the machine
    was suspended), and proves nothing of the other: it counts as a usual one.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._last: object = None
        self._last_s: float | None = None
        self.still_s = 0.0

    def at(self, counter: object, now_s: float) -> float:
        """The counter as it is now; since when it has been the same, in seconds."""
        if self._last_s is None or counter != self._last:
            self.still_s = 0.0
        else:
            self.still_s += min(now_s - self._last_s, 2 * self._every_s)
        self._last, self._last_s = counter, now_s
        return self.still_s

    def forget(self) -> None:
        """Nothing was to be expected until now."""
        self._last_s, self.still_s = None, 0.0
