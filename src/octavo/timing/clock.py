"""The one place where time is read. Knows no scheduler: the engine reads it at step boundaries only."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "ManualClock", "WallClock", "microseconds"]


def microseconds(seconds: float) -> int:
    """Whole ones: sums of them are the same everywhere, and by them it is decided what came first."""
    return int(seconds * 1e6 + 0.5)


class Clock(Protocol):
    """Something that tells the time."""

    def now_s(self) -> float:
        """Seconds since some fixed moment; never goes back."""


class WallClock:
    """Unix time at construction, advanced by the monotonic clock, so that it never jumps."""

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def now_s(self) -> float:
        return self._offset_s + time.monotonic()


class ManualClock:
    """Time that moves only when told to: for tests, and for a virtual clock."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now_s(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"a clock cannot go back by {-seconds} s")
        self._now_s += seconds

    def advance_to(self, now_s: float) -> None:
        if now_s < self._now_s:
            raise ValueError(f"a clock cannot go back from {self._now_s} s to {now_s} s")
        self._now_s = now_s
