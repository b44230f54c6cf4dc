"""Closed forms against a simulation of the queue and against each other."""

from __future__ import annotations

import heapq
import math
import random

import pytest

from octavo.planning.queueing import erlang_b, erlang_c, wait_md1_s, wait_mmc_s


def waited_s(rate: float, service: list[float], servers: int, seed: int) -> float:
    """The mean wait of a queue with so many servers, first come, first served."""
    draw = random.Random(seed)
    free = [0.0] * servers
    now_s = total_s = 0.0
    for seconds in service:
        now_s += draw.expovariate(rate)
        start_s = max(now_s, heapq.heappop(free))
        total_s += start_s - now_s
        heapq.heappush(free, start_s + seconds)
    return total_s / len(service)


@pytest.mark.parametrize(("servers", "load"), [(1, 0.6), (4, 3.0), (16, 12.0)])
def test_waits_are_those_of_a_queue(servers: int, load: float) -> None:
    draw = random.Random(servers)
    service = [draw.expovariate(1.0) for _ in range(200_000)]
    expected = waited_s(load, service, servers, seed=99)
    assert wait_mmc_s(load, 1.0, servers) == pytest.approx(expected, rel=0.08)


def test_a_fixed_service_waits_half_as_long() -> None:
    assert wait_md1_s(0.7, 1.0) == pytest.approx(wait_mmc_s(0.7, 1.0, 1) / 2)
    assert wait_md1_s(0.7, 1.0) == pytest.approx(waited_s(0.7, [1.0] * 200_000, 1, seed=2), rel=0.05)


def test_a_queue_that_grows_for_ever() -> None:
    assert math.isinf(wait_mmc_s(2.0, 1.0, 2)) and math.isinf(wait_md1_s(1.0, 1.0))
    assert erlang_c(2, 2.0) == 1.0


def test_known_values() -> None:
    assert erlang_b(1, 1.0) == pytest.approx(0.5)
    assert erlang_b(2, 1.0) == pytest.approx(0.2)
    assert erlang_c(1, 0.3) == pytest.approx(0.3)  # one server: as often as it is busy
    assert erlang_b(500, 450.0) < 0.01  # no overflow
