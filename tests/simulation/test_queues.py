"""Routers against queueing theory: one-slot replicas with a fixed service time are queues whose waits are known."""

from __future__ import annotations

import pytest

from octavo.config import RouterName
from octavo.simulation.cluster import Cluster
from octavo.simulation.pace import LinearPace
from octavo.simulation.replica import Replica
from octavo.simulation.routers import ROUTERS, CacheAware
from octavo.simulation.run import simulate
from octavo.timing.clock import ManualClock
from octavo.workload.draws import Draws
from octavo.workload.request import Part
from tests.simulation.test_cluster import waits_s
from tests.simulation.test_run import config, request

SERVICE_S, SERVERS = 0.020, 4


def arrivals_s(count: int, load: float) -> list[float]:
    """Poisson, `load` of what all servers can do; whole microseconds."""
    draws, at_s, arrivals = Draws(11, "queues"), 0.0, []
    for _ in range(count):
        at_s += draws.exponential() * SERVICE_S / SERVERS / load
        arrivals.append(round(at_s, 6))
    return arrivals


def waits(router: RouterName, arrivals: list[float]) -> list[float]:
    replicas = [
        Replica(config(max_slots=1), LinearPace(per_step_s=SERVICE_S), ManualClock()) for _ in range(SERVERS)
    ]
    done = simulate(
        Cluster(replicas, ROUTERS[router]()),
        [request(index, at_s, 1, 1) for index, at_s in enumerate(arrivals)],
    )
    return [(one.chunks[0].at_us - one.intended_us) / 1e6 - SERVICE_S for one in done.exchanges]


def test_round_robin_makes_queues_with_erlang_arrivals() -> None:
    """E_k/D/1: each server gets every k-th of a Poisson stream. Each wait by Lindley's recursion (1952)."""
    arrivals = arrivals_s(800, 0.8)
    ours = waits("round-robin", arrivals)
    for first in range(SERVERS):
        own = arrivals[first::SERVERS]
        expected = waits_s(own, [SERVICE_S] * len(own), 1)
        assert max(abs(a - b) for a, b in zip(ours[first::SERVERS], expected, strict=True)) < 5e-6


def test_routers_wait_longer_than_one_queue_and_the_less_they_know_the_longer() -> None:
    """M/D/c with one queue is a bound for all routers. Where all services are equally long, the fewest requests is the
    least work but for what is begun; two that are drawn are between that and a choice without knowledge."""
    arrivals = arrivals_s(1500, 0.9)
    one_queue = sum(waits_s(arrivals, [SERVICE_S] * len(arrivals), SERVERS))
    least, two = (sum(waits(name, arrivals)) for name in ("least-loaded", "power-of-two"))
    draws, parts = Draws(1, "blind"), [list[float]() for _ in range(SERVERS)]
    for at_s in arrivals:
        parts[min(int(draws.uniform() * SERVERS), SERVERS - 1)].append(at_s)
    blind = sum(sum(waits_s(part, [SERVICE_S] * len(part), 1)) for part in parts)
    assert one_queue < least < two < blind / 1.5


@pytest.mark.slow
def test_the_better_of_two_waits_as_long_as_its_fixed_point_says() -> None:
    """Mitzenmacher (2001): of many servers with exponential services a share of load^(2^i - 1) has at least i requests,
    so a request is there for the sum of load^(2^i - 2) services. Each answer is drawn in tokens of a hundredth."""
    servers, load, count, token_s, mean = 40, 0.8, 8_000, 0.001, 100
    draws, at_s, requests = Draws(5, "fixed point"), 0.0, []
    for index in range(count):
        at_s += draws.exponential() * mean * token_s / servers / load
        tokens = max(round(draws.exponential() * mean), 1)
        requests.append(request(index, round(at_s, 6), 1, tokens))
    own = config(max_slots=1)
    replicas = [Replica(own, LinearPace(per_step_s=token_s), ManualClock()) for _ in range(servers)]
    done = simulate(Cluster(replicas, ROUTERS["power-of-two"]()), requests)
    there = [(one.end_us - one.intended_us) / 1e6 for one in done.exchanges[count // 10 :]]
    expected_s = mean * token_s * sum(load ** (2**i - 2) for i in range(1, 12))
    assert sum(there) / len(there) == pytest.approx(expected_s, rel=0.05)


@pytest.mark.parametrize(("cap", "slack"), [(1.5, 4), (1e9, 0)])
def test_a_beginning_that_all_have_stays_on_one_server_until_that_has_too_much(
    cap: float, slack: int
) -> None:
    """Forty requests with the same document, while none is answered: without a cap all go to one server; with it nobody
    has more than 1.5 times the mean and 4."""
    shared = (Part("document", 256), Part("question", 8))
    requests = [request(index, index * 1e-4, 264, 400, parts=shared) for index in range(40)]
    replicas = [Replica(config(), LinearPace(per_step_s=0.010), ManualClock()) for _ in range(4)]
    served = Cluster(replicas, CacheAware(cap=cap, slack=slack))
    done = simulate(served, requests)
    answers = [place.generated_tokens // 400 for place in served.places(done.end_us)]
    assert sum(answers) == 40
    if slack:
        assert max(answers) <= 1.5 * 40 / 4 + 4 + 1
        assert min(answers) > 0
    else:
        assert answers == [40, 0, 0, 0]
