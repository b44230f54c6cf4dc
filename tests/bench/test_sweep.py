"""Which rates a sweep has, in which order they are run, and where an automatic one ends."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter

import pytest

from benchmarks.queues import Queue, Said
from octavo.bench.backlog import Backlog
from octavo.bench.search import Progress
from octavo.bench.sweep import Sweep, saturated, sweep, sweep_auto
from octavo.errors import BenchError, InvalidParameter


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("1,2,4", (1.0, 2.0, 4.0)),
        (" 4, .5 ", (0.5, 4.0)),
        ("3", (3.0,)),
        ("1:8:4", (1.0, 2.0, 4.0, 8.0)),
        ("0.5:8:3", (0.5, 2.0, 8.0)),
        ("1.2345:10:2", (1.2345, 10.0)),
        ("AUTO", ()),
    ],
)
def test_rates_are_listed_or_a_range_or_found(text: str, rates: tuple[float, ...]) -> None:
    assert Sweep.parse(text).rates == rates


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has '', no rate above 0"),
        ("1,,2", "has '', no rate above 0"),
        ("1,-2", "has '-2', no rate"),
        ("nan", "has 'nan', no rate"),
        ("1,1.0", "has a rate twice"),
        ("1:2", "is no range"),
        ("1:8:x", "has 'x' rates; from 2 to 100"),
        ("1:8:1", "has '1' rates"),
        ("1:8:101", "has '101' rates"),
        ("8:1:4", "goes from 8 to 1"),
        ("1:1.001:50", "equal in three digits"),
        ("automatic", "has 'automatic', no rate"),
    ],
)
def test_a_wrong_sweep_is_one_sentence(text: str, said: str) -> None:
    with pytest.raises(InvalidParameter, match=re.escape(said)) as caught:
        Sweep.parse(text)
    assert str(caught.value).endswith("write 1,2,4 or 0.5:8:6 (first, last, count) or auto.")


async def test_repeats_come_in_rounds_each_with_its_own_seed() -> None:
    queue = Queue(10.0)
    told: list[Progress] = []
    points = await sweep(queue.run_at, [1.0, 2.0, 4.0], repeats=2, first_seed=7, on_progress=told.append)
    assert queue.asked == [(1.0, 7), (2.0, 8), (4.0, 9), (1.0, 10), (2.0, 11), (4.0, 12)]
    assert [(point.rate, len(point.outcomes)) for point in points] == [(1.0, 2), (2.0, 2), (4.0, 2)]
    assert [(one.phase, one.run, one.runs) for one in told][2:4] == [("sweeping", 1, 2), ("sweeping", 2, 3)]
    with pytest.raises(InvalidParameter, match="repeats is 0"):
        await sweep(queue.run_at, [1.0], repeats=0)


@pytest.mark.parametrize("requests", [1, 20])
async def test_an_automatic_sweep_ends_where_the_server_no_longer_keeps_up(requests: int) -> None:
    # Of sessions with many requests one at a time has more requests a second than the server can have sessions.
    queue = Queue(64.0 / requests)

    async def alone(seed: int) -> Said:
        return Said({"request_rate": 8.0})

    points = await sweep_auto(queue.run_at, alone)
    rates = [point.rate for point in points if point.rate is not None]
    assert points[0].rate is None
    assert rates == sorted(rates) and 7 <= len(rates) <= 9
    late = [saturated(point.outcomes[0]) for point in points[1:]]
    assert not late[0] and late[-1] and late == sorted(late)
    bend = late.index(True)
    gaps = [math.log(high / low) for low, high in itertools.pairwise(rates)]
    assert rates[bend - 1] < 1.06 * queue.capacity and gaps[bend - 1] == min(gaps)


async def test_an_automatic_sweep_repeats_all_its_rates() -> None:
    queue = Queue(50.0)
    points = await sweep_auto(queue.run_at, queue.alone, repeats=3, first_seed=5)
    assert {len(point.outcomes) for point in points[1:]} == {3}
    assert [seed for _, seed in queue.asked] == list(range(5, 5 + len(queue.asked)))
    assert set(Counter(rate for rate, _ in queue.asked[1:]).values()) == {3}


async def test_a_server_that_keeps_up_with_everything_is_given_up_after_a_while() -> None:
    async def run_at(rate: float, seed: int) -> Said:
        return Said({"offered_rate": rate, "request_rate": rate})

    async def alone(seed: int) -> Said:
        return Said({"request_rate": 1.0})

    points = await sweep_auto(run_at, alone)
    assert max(point.rate or 0.0 for point in points) > 1e6


async def test_without_a_rate_to_begin_with_it_asks_for_one() -> None:
    async def alone(seed: int) -> Said:
        return Said({"request_rate": 0.0})

    with pytest.raises(BenchError, match="give the rates"):
        await sweep_auto(Queue(1.0).run_at, alone)


def test_a_server_keeps_up_if_nothing_piles_up_and_what_is_offered_is_answered() -> None:
    growing = Backlog(share=0.2, t=9.0, first=1.0, last=9.0)
    assert saturated(Said({}, growing))
    assert saturated(Said({"offered_rate": 10.0, "request_rate": 8.0}))
    assert not saturated(
        Said({"offered_rate": 10.0, "request_rate": 9.5}, Backlog(share=0.2, t=1.0, first=1, last=2))
    )
    assert not saturated(Said({}))
