"""A timer that is right to some ten microseconds, where the system has one. Knows nothing of what it wakes.

The loops' own timers count whole milliseconds (uvloop's, and the selector's on epoll), so that each request would
leave up to 1 ms late. On Linux a timerfd wakes the loop as a readable file does; nothing spins. Elsewhere, and with
a clock that is not the system's, the loop's timer is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from octavo.bench.connection import ClockNs

__all__ = ["Alarm"]

_MONOTONIC = 1
_ABSOLUTE = 1


class Alarm:
    """Calls `ring` at the time it was last set to."""

    def __init__(self, ring: Callable[[], None], clock_ns: ClockNs) -> None:
        self._ring = ring
        self._clock_ns = clock_ns
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | asyncio.Handle | None = None
        self._timer = _timer() if clock_ns is time.perf_counter_ns else None
        if self._timer is not None:
            try:
                self._loop.add_reader(self._timer, self._fired)
            except NotImplementedError:
                os.close(self._timer)
                self._timer = None

    def set(self, at_ns: int) -> None:
        """By `clock_ns`; a time that has passed rings in the loop's next turn. Replaces what was set."""
        self.unset()
        wait_ns = at_ns - self._clock_ns()
        if wait_ns <= 0:
            self._handle = self._loop.call_soon(self._ring)
        elif self._timer is not None:
            _arm(self._timer, at_ns)
        else:
            self._handle = self._loop.call_at(self._loop.time() + wait_ns / 1e9, self._ring)

    def unset(self) -> None:
        """It will not ring."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._timer is not None:
            _arm(self._timer, 0)

    def close(self) -> None:
        """For good."""
        self.unset()
        if self._timer is not None:
            self._loop.remove_reader(self._timer)
            os.close(self._timer)
            self._timer = None

    def _fired(self) -> None:
        assert self._timer is not None
        with contextlib.suppress(BlockingIOError):  # it was set again in this turn of the loop
            os.read(self._timer, 8)
            self._ring()


class _Spec(ctypes.Structure):
    """struct itimerspec, of an interval and a first time, each seconds and nanoseconds."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


@functools.cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.timerfd_create.argtypes = (ctypes.c_int, ctypes.c_int)
    libc.timerfd_settime.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.POINTER(_Spec), ctypes.c_void_p)
    return libc


def _timer() -> int | None:
    """A timerfd of CLOCK_MONOTONIC, which time.perf_counter_ns reads on Linux. os has it from Python 3.13."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        descriptor = int(_libc().timerfd_create(_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))
    except (AttributeError, OSError):
        return None
    return descriptor if descriptor >= 0 else None


def _arm(descriptor: int, at_ns: int) -> None:
    """To a time, or with 0 to none."""
    spec = _Spec(0, 0, at_ns // 1_000_000_000, at_ns % 1_000_000_000)
    _libc().timerfd_settime(descriptor, _ABSOLUTE, ctypes.byref(spec), None)
