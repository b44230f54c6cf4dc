"""Promise 2 over HTTP, on the default model: an engine is killed or stopped under a mixed load, and nothing is lost."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time

import httpx2
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.kills import Streams, bodies, engine_of, serving, wait_until_ready

pytestmark = pytest.mark.slow

KILLS = 20


async def test_kill_9_twenty_times_changes_no_answer() -> None:
    """At any moment, in the middle of a recovery too; each answer is that of an undisturbed run."""
    dice = random.Random(7)
    with serving() as (url, server):
        streams = Streams(url, bodies(120))
        undisturbed = await streams.once()
        end = asyncio.Event()
        clients = asyncio.create_task(streams.until(end))
        for kill in range(KILLS):
            if kill % 5 == 4:  # while the engine is loading, or has just begun again
                await asyncio.sleep(dice.uniform(0.05, 0.6))
            else:
                await streams.goes_on()
                await asyncio.sleep(dice.uniform(0.0, 3.0))
            assert not clients.done(), clients.exception()
            streams.killed()
            await _kill(server_pid=server.pid)
        await asyncio.sleep(1)
        end.set()
        await clients
        await streams.close()
        metrics = await _metrics(url)
    assert all(answers for answers in streams.answers), "everybody had an answer"
    for one, answers in zip(undisturbed, streams.answers, strict=True):
        assert all(answer == one for answer in answers)
    assert metrics["octavo_engine_restarts_total"] == KILLS
    assert metrics["octavo_requests_quarantined_total"] == 0
    assert metrics["vllm:num_requests_running"] == metrics["vllm:num_requests_waiting"] == 0
    assert metrics["vllm:kv_cache_usage_perc"] == 0


async def test_a_stopped_engine_is_not_ready_until_it_goes_on() -> None:
    """Case 35: SIGSTOP for ten seconds. Readiness is 503 meanwhile, liveness is not; no token is lost."""
    with serving() as (url, server):
        streams = Streams(url, bodies(500)[::4])
        undisturbed = await streams.once()
        again = asyncio.create_task(streams.once())
        await asyncio.sleep(1)
        engine = engine_of(server)
        assert await _status(url, "/health/ready") == 200
        os.kill(engine.pid, signal.SIGSTOP)
        began = time.monotonic()
        states = set()
        while time.monotonic() < began + 10:
            await asyncio.sleep(0.5)
            states.add((await _status(url, "/health/ready"), await _status(url, "/health/live")))
        assert not again.done()
        assert states == {(200, 200), (503, 200)}
        assert (await _status(url, "/health/ready")) == 503
        os.kill(engine.pid, signal.SIGCONT)
        async with asyncio.timeout(60):
            await wait_until_ready(url)
        assert await again == undisturbed
        assert engine_of(server).pid == engine.pid, "it was not replaced"
        await streams.close()


async def _kill(server_pid: int) -> None:
    """The engine process that is there, or the next one that is: it may be loading still."""
    async with asyncio.timeout(60):
        while True:
            try:
                os.kill(engine_of(psutil.Process(server_pid)).pid, signal.SIGKILL)
            except (LookupError, ProcessLookupError):
                await asyncio.sleep(0.005)
            else:
                return


async def _status(url: str, path: str) -> int:
    async with httpx2.AsyncClient(base_url=url, trust_env=False) as client:
        return (await client.get(path)).status_code


async def _metrics(url: str) -> dict[str, float]:
    async with httpx2.AsyncClient(base_url=url, trust_env=False) as client:
        text = (await client.get("/metrics")).text
    return {one.name: one.value for family in text_string_to_metric_families(text) for one in family.samples}
