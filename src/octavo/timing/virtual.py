"""While time is virtual, nobody reads the real one. Knows Python's clock functions, and no simulation."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["WallTimeRead", "only_virtual_time", "real_time"]

_READERS = (
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "perf_counter_ns",
    "process_time",
    "process_time_ns",
    "sleep",
    "thread_time",
    "thread_time_ns",
    "time",
    "time_ns",
)
_REAL: dict[str, Callable[..., Any]] = {name: getattr(time, name) for name in _READERS}


class WallTimeRead(AssertionError):
    """Code of ours has read real time where it is simulated: what it did then is no function of its inputs."""


@contextmanager
def only_virtual_time() -> Iterator[None]:
    """Within, every clock function of `time` raises WallTimeRead when a module of Octavo calls it. Libraries may: a
    log line has a date. Of the whole process; not for threads beside it."""
    for name, real in _REAL.items():
        setattr(time, name, _refusing(name, real))
    try:
        yield
    finally:
        for name, real in _REAL.items():
            setattr(time, name, real)


@contextmanager
def real_time() -> Iterator[None]:
    """Within `only_virtual_time`, for what shows a person how far it is."""
    refusing = {name: getattr(time, name) for name in _REAL}
    for name, real in _REAL.items():
        setattr(time, name, real)
    try:
        yield
    finally:
        for name, one in refusing.items():
            setattr(time, name, one)


def _refusing(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def refused(*arguments: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller == "octavo" or caller.startswith("octavo."):
            raise WallTimeRead(f"{caller} calls time.{name} while time is virtual")
        return real(*arguments)

    return refused
