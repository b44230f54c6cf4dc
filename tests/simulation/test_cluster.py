"""Several replicas: round robin is separate machines, order of events is kept, routers choose as they say."""

from __future__ import annotations

import heapq
import math

import msgspec
import pytest

from octavo.bench.record import Run
from octavo.bench.ticks import Ticks
from octavo.config import RouterName
from octavo.simulation.cluster import Cluster
from octavo.simulation.deployment import Deployment
from octavo.simulation.pace import LinearPace, Pace
from octavo.simulation.replica import Replica
from octavo.simulation.routers import (
    ROUTERS,
    CacheAware,
    LeastLoaded,
    PowerOfTwo,
    RoundRobin,
)
from octavo.simulation.run import simulate
from octavo.timing.clock import ManualClock
from octavo.workload.draws import Draws
from octavo.workload.generate import requests_of
from octavo.workload.request import Request
from octavo.workload.spec import load_workload
from tests.simulation.test_run import config, request

PACE = LinearPace(per_step_s=0.008, per_token_s=3e-5, per_kv_token_s=7e-8)


def cluster(
    count: int, name: RouterName, *, fast: bool = True, pace: Pace = PACE, **changes: object
) -> Cluster:
    replicas = [Replica(config(**changes), pace, ManualClock(), fast=fast) for _ in range(count)]
    return Cluster(replicas, ROUTERS[name]())


def made(name: str, count: int, rate: float) -> list[Request]:
    workload = msgspec.structs.replace(load_workload(name), requests=count)
    return list(requests_of(workload.at_rate(rate)))


def loads(*requests: int) -> dict[int, int]:
    return dict(enumerate(requests))


def times(run: Run) -> dict[int, list[int]]:
    return {one.index: [chunk.at_us for chunk in one.chunks] for one in run.exchanges}


def test_round_robin_without_sessions_is_as_many_machines_apart() -> None:
    requests = made("rag", 60, 12.0)
    together = times(simulate(cluster(3, "round-robin"), requests))
    for first in range(3):
        own = requests[first::3]
        apart = times(simulate(Replica(config(), PACE, ManualClock()), own))
        assert {index: together[index] for index in apart} == apart
    assert len(together) == 60


@pytest.mark.parametrize("name", ROUTERS)
@pytest.mark.parametrize("workload", ["chat", pytest.param("voice", marks=pytest.mark.slow)])
def test_equal_steps_taken_together_change_nothing_among_several(name: RouterName, workload: str) -> None:
    """Sessions too: an answer of one replica brings about a request for another."""
    requests = made(workload, 30, 8.0)
    one, other = (
        msgspec.json.encode(simulate(cluster(3, name, fast=fast, max_slots=4), requests))
        for fast in (True, False)
    )
    assert one == other


def test_a_roofline_s_equal_steps_kept_as_ranges_of_times_are_those_of_single_steps() -> None:
    """As `octavo simulate` runs them, against the plainest way: every step, and every chunk of every answer. With
    prompts in chunks, waiting, and memory that is short: what was preempted goes on in another range."""
    requests = made("chat", 60, 25.0)
    records = []
    preempted = 0.0
    for fast in (True, False):
        pace = Deployment(model="llama-3-8b", hardware="l4").pace
        fleet = cluster(2, "least-loaded", fast=fast, pace=pace, num_blocks=200, max_step_tokens=128)
        run = simulate(fleet, requests, compact=fast)
        assert all(isinstance(one.chunks, Ticks) is fast for one in run.exchanges)
        for replica in fleet.replicas:
            replica.engine.check()
        preempted = run.memory["preemptions"]
        records.append(msgspec.json.encode(run, enc_hook=list))
    assert records[0] == records[1]
    assert preempted > 0


def test_who_waits_for_an_answer_comes_in_time_to_another_replica() -> None:
    """The second replica decodes a long answer; what follows the first's answer must not wait for its end."""
    first = request(0, 0.0, 10, 5)
    long = request(1, 0.0, 10, 400)
    after = request(2, 0.0, 10, 3, after=0, delay_s=0.1)
    run = simulate(cluster(2, "round-robin"), [first, long, after])
    ended, follower = run.exchanges[0].end_us, run.exchanges[2]
    assert follower.intended_us == ended + 100_000
    assert follower.chunks[0].at_us - follower.intended_us < 3 * 9_000


def test_the_least_loaded_and_the_better_of_two() -> None:
    assert LeastLoaded().choose((), loads(3, 1, 1)) == 1
    router = PowerOfTwo(seed=5)
    chosen = [router.choose((), loads(0, 9, 9, 9)) for _ in range(400)]
    # The idle one wins whenever it is among the two that are drawn: half of the time with four.
    assert 0.42 < chosen.count(0) / 400 < 0.58
    assert set(chosen) == {0, 1, 2, 3}
    assert PowerOfTwo().choose((), loads(7)) == 0
    turn = RoundRobin()
    assert [turn.choose((), loads(0, 0, 0)) for _ in range(4)] == [0, 1, 2, 0]


def test_a_known_beginning_goes_where_it_went_unless_that_one_has_too_much_to_do() -> None:
    router = CacheAware(cap=1.5, slack=1)
    beginning = tuple(range(64))
    assert router.choose(beginning, loads(0, 0)) == 0
    assert router.choose((*beginning, 7, 8), loads(1, 0)) == 0
    assert router.choose(tuple(range(100, 164)), loads(2, 0)) == 1
    assert router.choose(beginning, loads(9, 1)) == 1, (
        "nine is more than 1.5 times the mean of five and one more"
    )
    assert router.choose(beginning, loads(2, 2)) == 1, "it was there last"
    small = CacheAware(most=4)
    small.choose(beginning, loads(0, 1))
    small.choose(tuple(range(500, 564)), loads(1, 0))
    assert small.choose(beginning, loads(5, 1)) == 1, "forgotten"


@pytest.mark.slow
def test_a_router_that_knows_prefixes_finds_more_of_them() -> None:
    requests = made("agent", 40, 1.0)
    found = {}
    for name in ("round-robin", "cache-aware"):
        run = simulate(cluster(4, name, max_model_len=1 << 17, num_blocks=1 << 14), requests)
        assert all(one.error is None for one in run.exchanges)
        found[name] = (
            run.server[-1].values["prefix_hit_tokens"] / run.server[-1].values["prefix_queried_tokens"]
        )
    assert found["cache-aware"] > 1.2 * found["round-robin"]


def test_several_need_a_router() -> None:
    replicas = [Replica(config(), PACE, ManualClock()) for _ in range(2)]
    with pytest.raises(ValueError, match="needs replicas and a router"):
        Cluster(replicas)


def erlang_c(servers: int, load: float) -> float:
    """The chance to wait in M/M/c; `load` in erlangs (Erlang 1917)."""
    last = load**servers / math.factorial(servers) * servers / (servers - load)
    return last / (sum(load**k / math.factorial(k) for k in range(servers)) + last)


def waits_s(arrivals_s: list[float], services_s: list[float], servers: int) -> list[float]:
    """First come, first served: each takes the server that is free first (Kiefer and Wolfowitz 1955)."""
    free_s, waits = [0.0] * servers, []
    for at_s, service_s in zip(arrivals_s, services_s, strict=True):
        start_s = max(at_s, heapq.heappop(free_s))
        waits.append(start_s - at_s)
        heapq.heappush(free_s, start_s + service_s)
    return waits


@pytest.mark.slow
def test_slots_are_the_servers_of_erlang_s_queue() -> None:
    """M/M/c: c slots, steps of one length whoever is in them, answers of geometric length. The mean wait is
    C(c, a) / (c μ − λ) (Erlang 1917); each wait is the recursion's, but for the step that an arrival falls into."""
    slots, step_s, mean_tokens, load = 4, 0.001, 50, 3.2
    draws = Draws(3, "erlang")
    service_s = mean_tokens * step_s
    tokens, arrivals_s, at_s = [], [], 0.0
    for _ in range(200_000):
        drawn = math.log(max(draws.uniform(), 1e-12)) / math.log(1 - 1 / mean_tokens)
        tokens.append(max(1, math.ceil(drawn)))
        arrivals_s.append(at_s)
        at_s += draws.exponential() * service_s / load
    expected = waits_s(arrivals_s, [count * step_s for count in tokens], slots)
    formula_s = erlang_c(slots, load) / ((slots - load) / service_s)
    assert sum(expected) / len(expected) == pytest.approx(formula_s, rel=0.05)
    requests = [request(index, arrivals_s[index], 1, tokens[index]) for index in range(800)]
    run = simulate(Replica(config(max_slots=slots), LinearPace(per_step_s=step_s), ManualClock()), requests)
    waited = [(one.chunks[0].at_us - one.intended_us) / 1e6 - step_s for one in run.exchanges]
    late = [ours - theirs for ours, theirs in zip(waited, expected, strict=False)]
    assert min(late) > -1e-5 and max(late) < 4 * step_s
