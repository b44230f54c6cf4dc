"""The client's own state: samples at even times, a loop that was held up, a collector that stays away."""

from __future__ import annotations

import asyncio
import gc

import pytest

from octavo.bench.record import ClientSample
from octavo.bench.sampler import quiet_collector, sample
from tests.bench.virtual_time import VirtualLoop, clock_ns, in_virtual_time


def test_samples_tell_of_processor_time_and_of_a_loop_that_was_held_up() -> None:
    async def main() -> tuple[list[ClientSample], int]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        samples: list[ClientSample] = []
        told = 0
        start = clock_ns()

        def also() -> None:
            nonlocal told
            told += 1

        task = asyncio.create_task(
            sample(
                samples,
                lambda: 3,
                start_ns=start,
                clock_ns=clock_ns,
                cpu_ns=lambda: (clock_ns() - start) // 4,
                also=also,
            )
        )
        await asyncio.sleep(0.25)
        loop.jump(0.43)  # something that does not let go: until 0.68
        await asyncio.sleep(0.25)
        task.cancel()
        return samples, told

    samples, told = in_virtual_time(main)
    assert [(one.at_us, one.lag_us) for one in samples] == [
        (100_000, 0),
        (200_000, 0),
        (680_000, 380_000),
        (780_000, 0),
        (880_000, 0),
    ]
    assert {one.cpu for one in samples} == {0.25}
    assert {one.running for one in samples} == {3}
    assert told == 5


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_rests_and_is_as_it_was_afterwards(enabled: bool) -> None:
    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with quiet_collector():
            assert not gc.isenabled()
            assert gc.get_freeze_count() > 0
        assert gc.isenabled() == enabled
        assert gc.get_freeze_count() == 0
    finally:
        (gc.enable if was else gc.disable)()
