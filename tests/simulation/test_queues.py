"""Routers against queueing theory: one-slot replicas with a fixed service time are queues whose waits are known."""

from __future__ import annotations

from octavo.config import RouterName
from octavo.simulation.cluster import Cluster
from octavo.simulation.pace import LinearPace
from octavo.simulation.replica import Replica
from octavo.simulation.routers import ROUTERS
from octavo.simulation.run import simulate
from octavo.timing.clock import ManualClock
from octavo.workload.draws import Draws
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
