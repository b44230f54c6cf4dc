"""An alarm rings once, at the time it was last set to, by the system's timer and by the loop's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from octavo.bench.connection import ClockNs
from octavo.bench.pacing import Alarm
from tests.bench.virtual_time import VirtualLoop, clock_ns, in_virtual_time

MS = 1_000_000


def selector() -> asyncio.AbstractEventLoop:
    return asyncio.SelectorEventLoop()


LOOPS: list[tuple[Callable[[], asyncio.AbstractEventLoop], ClockNs]] = [
    (selector, time.perf_counter_ns),
    (uvloop.new_event_loop, time.perf_counter_ns),
    (VirtualLoop, clock_ns),
]


def on(loop: Callable[[], asyncio.AbstractEventLoop], main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


@pytest.mark.parametrize(("loop", "clock"), LOOPS)
def test_an_alarm_never_rings_early_and_rings_once(
    loop: Callable[[], asyncio.AbstractEventLoop], clock: ClockNs
) -> None:
    async def main() -> None:
        rung: list[int] = []
        event = asyncio.Event()

        def ring() -> None:
            rung.append(clock())
            event.set()

        alarm = Alarm(ring, clock)
        due = clock() + 5 * MS
        alarm.set(due)
        await event.wait()
        await asyncio.sleep(0.01)
        assert len(rung) == 1 and rung[0] >= due
        alarm.close()

    on(loop, main)


@pytest.mark.parametrize(("loop", "clock"), LOOPS)
def test_the_last_time_counts_and_none_after_unset_or_close(
    loop: Callable[[], asyncio.AbstractEventLoop], clock: ClockNs
) -> None:
    async def main() -> None:
        rung = asyncio.Queue[str]()
        alarm = Alarm(lambda: rung.put_nowait("ring"), clock)
        alarm.set(clock() + 3_600_000 * MS)
        alarm.set(clock() + 2 * MS)
        await rung.get()
        alarm.set(clock() - MS)  # a time that has passed
        await rung.get()
        alarm.set(clock() + 2 * MS)
        alarm.unset()
        alarm.set(clock() - MS)
        alarm.unset()
        await asyncio.sleep(0.02)
        assert rung.empty()
        alarm.set(clock() + 2 * MS)
        alarm.close()
        await asyncio.sleep(0.02)
        assert rung.empty()

    on(loop, main)


def test_an_alarm_may_be_set_while_it_rings() -> None:
    async def main() -> list[int]:
        rung: list[int] = []

        def ring() -> None:
            rung.append(clock_ns())
            if len(rung) < 3:
                alarm.set(clock_ns() + 7 * MS)

        alarm = Alarm(ring, clock_ns)
        begin = clock_ns()
        alarm.set(begin + MS)
        await asyncio.sleep(1.0)
        alarm.close()
        return [at - begin for at in rung]

    assert in_virtual_time(main) == [MS, 8 * MS, 15 * MS]
