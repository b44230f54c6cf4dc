"""A server that tells of its steps is calibrated from outside: what it is comes from itself, its loads are exact."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from octavo.backends.base import Limits
from octavo.bench.target import discover
from octavo.bench.watched import Watched
from octavo.simulation.calibrate_engine import AT_ONCE
from octavo.simulation.calibrate_server import Knobs, calibrate_server
from octavo.simulation.calibrate_told import listening, traffic
from octavo.simulation.calibrated import Calibration
from octavo.simulation.measured import Measured
from octavo.simulation.replica import Replica
from octavo.simulation.run import simulate
from octavo.timing.clock import ManualClock
from octavo.workload.request import Request
from tests.bench.scripted import Answers, ScriptedServer
from tests.server.conftest import Server

LIMITS = Limits(num_blocks=512, block_size=16, max_slots=64, max_step_tokens=512, max_model_len=2048)


def shape(requests: list[Request]) -> list[tuple[int, int]]:
    return [(sum(part.tokens for part in one.parts), one.output_tokens) for one in requests]


def test_traffic_is_alike_each_time_with_new_tokens_and_fits() -> None:
    for clients in AT_ONCE:
        first, second = (list(traffic(LIMITS, clients, turn)) for turn in (1, 2))
        assert shape(first) == shape(second) and len(first) == max(2 * clients + 6, 32)
        for one, other in zip(first, second, strict=True):
            assert one.token_ids(1000) != other.token_ids(1000)
        assert all(0 < prompt <= 1024 and output >= 4 for prompt, output in shape(first))
    whole = [one for clients in AT_ONCE for one in traffic(LIMITS, clients, 1)]
    beginnings = {one.parts[0].key for one in whole if len(one.parts) > 1}
    assert len(beginnings) == 3
    assert {prompt.bit_length() for prompt, _ in shape(whole)} >= set(range(4, 10))


def test_small_servers_get_small_prompts() -> None:
    small = Limits(num_blocks=32, block_size=16, max_slots=4, max_step_tokens=64, max_model_len=512)
    for clients in (1, 4):
        assert all(prompt + output <= 256 for prompt, output in shape(list(traffic(small, clients, 3))))


def test_who_tells_nothing_is_not_listened_to() -> None:
    async def main() -> Watched | None:
        server = ScriptedServer(Answers())
        await server.start()
        try:
            async with listening(await discover(server.url)) as watched:
                return watched
        finally:
            await server.stop()

    assert asyncio.run(main()) is None


@pytest.mark.slow
def test_a_server_tells_what_its_steps_computed(tiny_engine: dict[str, Any]) -> None:
    server = Server({**tiny_engine, "speculation": "off", "max_step_tokens": 128})
    told: list[tuple[int, int]] = []

    async def measure() -> Calibration:
        target = await discover(server.url)
        return await calibrate_server(
            target, Knobs(), repeats=1, told=lambda done, total: told.append((done, total))
        )

    try:
        found = asyncio.run(measure())
    finally:
        assert server.stop() == 0
    # Not what somebody might think of it, but what it says itself.
    assert (found.limits.num_blocks, found.limits.block_size, found.limits.max_step_tokens) == (200, 16, 128)
    assert found.kv_bytes_per_token is not None and found.kv_bytes_per_token > 0
    assert found.seen["tokens"][1] == 128 and found.seen["sequences"][1] >= 32
    assert found.fitted.steps > 300
    assert told == [(place, len(told)) for place in range(len(told))]
    replica = Replica(Measured(calibration=found).settings, found.pace, ManualClock())
    done = simulate(replica, traffic(found.limits, 4, 1), host=found.host)
    assert all(one.error is None for one in done.exchanges)
