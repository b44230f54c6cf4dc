"""Whether a server that falls behind is told from one that keeps up, on queues of known load."""

from __future__ import annotations

import heapq
import random

import pytest

from octavo.bench.backlog import LIMIT, Backlog, backlog
from octavo.bench.measures import measure
from octavo.bench.record import Exchange, Run
from octavo.bench.window import choose, whole
from tests.bench.runs import exchange, run


def queue(load: float, requests: int, servers: int, *, spread: float, seed: int) -> Run:
    """First come, first served; a service takes a second on average, gamma distributed, 0 for constant."""
    draw = random.Random(seed)
    free = [0.0] * servers
    at = 0.0
    done: list[Exchange] = []
    for _ in range(requests):
        service = draw.gammavariate(1 / spread**2, spread**2) if spread else 1.0
        end = max(at, heapq.heappop(free)) + service
        heapq.heappush(free, end)
        done.append(exchange(at * 1000, [], end_ms=end * 1000))
        at += draw.expovariate(load * servers)
    return run(done)


def found(made: Run) -> Backlog:
    growth = backlog(made, choose(made))
    assert growth is not None
    return growth


@pytest.mark.parametrize(("load", "share"), [(0.5, 0.0), (0.8, 0.0), (1.25, 0.2), (2.0, 0.5)])
@pytest.mark.parametrize(("servers", "spread"), [(1, 1.0), (1, 0.0), (16, 0.7)])
def test_the_share_that_piles_up_is_what_a_server_cannot_do(
    load: float, share: float, servers: int, spread: float
) -> None:
    shares = [found(queue(load, 400, servers, spread=spread, seed=seed)).share for seed in range(40)]
    assert sum(shares) / len(shares) == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize(("servers", "spread"), [(1, 1.0), (1, 0.0), (16, 0.7)])
def test_a_server_that_keeps_up_is_seldom_taken_for_one_that_falls_behind(
    servers: int, spread: float
) -> None:
    def grows(load: float) -> float:
        runs = [queue(load, 300, servers, spread=spread, seed=seed) for seed in range(150)]
        return sum(found(one).grows for one in runs) / len(runs)

    assert grows(0.8) <= 0.05
    assert grows(1.2) >= 0.85


def test_even_arrivals_and_even_answers_have_no_growth_at_all() -> None:
    even = run([exchange(place * 100, [], end_ms=place * 100 + 350) for place in range(100)])
    growth = found(even)
    assert growth.share == pytest.approx(0.0, abs=1e-3) and not growth.grows
    assert growth.first == pytest.approx(3.5, abs=0.01)


def test_a_server_that_does_half_of_an_even_load_piles_up_the_other_half() -> None:
    slow = run([exchange(place * 100, [], end_ms=place * 200 + 200) for place in range(200)])
    growth = found(slow)
    assert growth.share == pytest.approx(0.5, abs=0.02) and growth.grows
    assert growth.last > growth.first > LIMIT
    measures = measure(slow)
    assert measures.backlog == growth
    [told] = [one for one in measures.problems if "fell behind" in one]
    assert "50% of the offered requests piled up" in told
    assert measures.valid  # the server's fault, not the measuring's


def test_a_closed_loop_and_a_short_run_have_no_backlog() -> None:
    few = run([exchange(place * 100, [], end_ms=place * 200 + 200) for place in range(15)])
    assert backlog(few, whole(few)) is None
    closed = run([exchange(place * 100, [], end_ms=place * 100 + 100) for place in range(50)], clients=4)
    assert backlog(closed, whole(closed)) is None
