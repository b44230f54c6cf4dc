"""How the measuring process itself does: its processor time, and how late its loop is. Knows no requests.

A client that is short of processor time measures itself. So its share of a core and its loop's lag are in the record,
beside what it measured.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from octavo.bench.connection import ClockNs
from octavo.bench.record import ClientSample

__all__ = ["INTERVAL_S", "quiet_collector", "sample"]

INTERVAL_S = 0.1
_INTERVAL_NS = round(INTERVAL_S * 1e9)
_YOUNG_OBJECTS = 100_000


async def sample(
    samples: list[ClientSample],
    running: Callable[[], int],
    *,
    start_ns: int,
    clock_ns: ClockNs = time.perf_counter_ns,
    cpu_ns: ClockNs = time.process_time_ns,
    also: Callable[[], None] | None = None,
) -> None:
    """Adds a sample each INTERVAL_S, until it is cancelled. `also` is called with each."""
    at, used = clock_ns(), cpu_ns()
    due = at + _INTERVAL_NS
    while True:
        await asyncio.sleep(max(0, due - clock_ns()) / 1e9)
        now, now_used = clock_ns(), cpu_ns()
        samples.append(
            ClientSample(
                at_us=(now - start_ns) // 1000,
                cpu=(now_used - used) / max(1, now - at),
                lag_us=max(0, now - due) // 1000,
                running=running(),
            )
        )
        at, used = now, now_used
        due += _INTERVAL_NS
        if due <= now:  # those that were missed are not made up for
            due = now + _INTERVAL_NS
        if also is not None:
            also()
        if gc.get_count()[0] > _YOUNG_OBJECTS:
            gc.collect(0)


@contextmanager
def quiet_collector() -> Iterator[None]:
    """While it lasts, the garbage collector does not run by itself: a full collection stops all for tens of ms.

    What is there before is frozen (gc.freeze), so that no collection looks at it. Nothing of a run is garbage in
    cycles, apart from errors with their tracebacks; so that not even these grow for ever, `sample` collects the
    youngest generation after 100,000 new objects, which takes a few ms.
    """
    was = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was:
            gc.enable()
