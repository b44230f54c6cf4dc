"""Replicas that die: hand-worked times, nothing lost or told twice, and the same run again to the last byte."""

from __future__ import annotations

import msgspec
import pytest

from octavo.bench.record import Run
from octavo.config import RouterName
from octavo.errors import InvalidParameter
from octavo.simulation.asking import Asking
from octavo.simulation.cluster import Cluster
from octavo.simulation.failures import Failure, Failures
from octavo.simulation.pace import LinearPace
from octavo.simulation.replica import Replica
from octavo.simulation.routers import ROUTERS
from octavo.simulation.run import simulate
from octavo.timing.clock import ManualClock
from octavo.workload.request import Request
from tests.simulation.test_cluster import made
from tests.simulation.test_run import config, request

PACE = LinearPace(per_step_s=0.010, per_token_s=0.001)


def failing(
    count: int, failures: Failures, *, router: RouterName = "round-robin", fast: bool = True
) -> Cluster:
    def start(_: int) -> Replica:
        return Replica(config(), PACE, ManualClock(), fast=fast)

    return Cluster(
        [start(place) for place in range(count)], ROUTERS[router](), failures=failures, restart=start
    )


def run(count: int, failures: Failures, requests: list[Request], *, fast: bool = True) -> Run:
    cluster = failing(count, failures, fast=fast)
    done = simulate(cluster, requests)
    for replica in cluster.replicas:
        replica.engine.check()
    return done


@pytest.mark.parametrize("fast", [True, False])
def test_a_request_goes_on_elsewhere_from_what_was_delivered(fast: bool) -> None:
    """A prompt of 40: 50 ms. Then a token every 11 ms: 61, 72, 83. At 90 ms it dies in the step to 94, which nobody
    hears of. Elsewhere 40 + 4 tokens are computed again: 90 + 54 = 144, and then 155 and 166."""
    done = run(2, Failures([Failure(0, 90_000, None)]), [request(0, 0.0, 40, 7)], fast=fast)
    (one,) = done.exchanges
    assert [chunk.at_us for chunk in one.chunks] == [
        50_000,
        61_000,
        72_000,
        83_000,
        144_000,
        155_000,
        166_000,
    ]
    assert (one.error, one.output_tokens, one.end_us) == (None, 7, 166_000)
    assert done.server[-1].values["replicas"] == 1
    assert done.server[-1].values["busy_s"] == pytest.approx((0.090 + 0.076) / 2)


def test_a_step_that_ends_when_the_replica_dies_was_delivered() -> None:
    done = run(2, Failures([Failure(0, 83_000, None)]), [request(0, 0.0, 40, 5)])
    assert [chunk.at_us for chunk in done.exchanges[0].chunks] == [50_000, 61_000, 72_000, 83_000, 137_000]


def test_the_last_token_of_a_step_that_died_comes_from_elsewhere() -> None:
    """The engine was idle after that step, and nobody else has work: the request must not be forgotten."""
    done = run(2, Failures([Failure(0, 60_000, None)]), [request(0, 0.0, 40, 2)])
    assert [chunk.at_us for chunk in done.exchanges[0].chunks] == [50_000, 60_000 + 51_000]


def test_where_nobody_serves_requests_wait_for_the_next_start() -> None:
    """One came before and one while it is dead; both are computed from 1 s on, in one step: 10 + 41 + 20 ms."""
    done = run(1, Failures([Failure(0, 55_000, 1_000_000)]), [request(0, 0.0, 40, 3), request(1, 0.5, 20, 1)])
    first, second = done.exchanges
    assert [chunk.at_us for chunk in first.chunks] == [50_000, 1_071_000, 1_082_000]
    assert [chunk.at_us for chunk in second.chunks] == [1_071_000]


def test_where_nobody_will_serve_again_requests_fail_with_a_reason() -> None:
    failures = Failures([Failure(0, 55_000, None), Failure(1, 60_000, None)])
    done = run(2, failures, [request(0, 0.0, 40, 9), request(1, 2.0, 20, 1)])
    assert [(one.error, one.status, one.end_us) for one in done.exchanges] == [
        ("status", 500, 60_000),
        ("status", 500, 2_000_000),
    ]
    assert all("no replica is left" in (one.message or "") for one in done.exchanges)


@pytest.mark.parametrize("router", ROUTERS)
def test_nothing_is_lost_or_told_twice_and_steps_taken_together_change_nothing(router: RouterName) -> None:
    """Failures every 4 s in the mean, sessions among the requests: to the last byte, whether fast, slow or again."""
    requests = made("chat", 25, 4.0)
    records = []
    for fast in (True, False, True):
        cluster = failing(3, Failures(mtbf_s=4.0, repair_s=1.5, seed=7), router=router, fast=fast)
        done = simulate(cluster, requests)
        assert cluster.failed > 3
        assert [one.index for one in done.exchanges] == list(range(25))
        for one in done.exchanges:
            assert one.error is None and one.output_tokens == one.wanted_output == len(one.chunks)
        for replica in cluster.replicas:
            assert replica.idle
            replica.engine.check()
        records.append(msgspec.json.encode(done))
    assert records[0] == records[1] == records[2]


def test_other_seeds_fail_at_other_times() -> None:
    one, same, other = (Failures(mtbf_s=60.0, seed=seed).after(0, 0) for seed in (1, 1, 2))
    assert one == same != other
    draws = Failures(mtbf_s=60.0, repair_s=5.0)
    lived = [draws.after(0, 1_000_000) for _ in range(4000)]
    assert sum(one.at_us - 1_000_000 for one in lived if one) / 4000 == pytest.approx(60e6, rel=0.05)
    assert all(one is not None and one.until_us == one.at_us + 5_000_000 for one in lived)


def test_several_answers_go_on_each_from_its_own_place() -> None:
    cluster = failing(2, Failures([Failure(0, 75_000, None)]))
    (one,) = simulate(cluster, [request(0, 0.0, 40, 6)], asking=Asking(n=3)).exchanges
    assert one.error is None and one.output_tokens == 3 * 6
    cluster.replicas[1].engine.check()


def test_who_is_dead_does_not_die() -> None:
    with pytest.raises(InvalidParameter, match=r"replica 1 die at 2 s, when it is dead already"):
        Failures([Failure(0, 1_000_000, None), Failure(0, 2_000_000, None)])
    with pytest.raises(ValueError, match="a way to start again"):
        Cluster([Replica(config(), PACE, ManualClock())], failures=Failures())
