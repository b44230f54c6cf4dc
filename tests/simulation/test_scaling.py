"""Replicas that come and go with the load: hand-worked times, what is paid for, and nothing lost."""

from __future__ import annotations

import msgspec
import pytest

from octavo.config import RouterName
from octavo.errors import InvalidParameter
from octavo.simulation.cluster import Cluster
from octavo.simulation.failures import Failure, Failures
from octavo.simulation.pace import LinearPace
from octavo.simulation.replica import Replica
from octavo.simulation.routers import ROUTERS
from octavo.simulation.run import simulate
from octavo.simulation.scaling import Autoscaler, Scaling
from octavo.timing.clock import ManualClock
from tests.simulation.test_cluster import made
from tests.simulation.test_run import config, request

PACE = LinearPace(per_step_s=0.100)


def scaled(
    scaling: Scaling,
    failures: Failures | None = None,
    *,
    router: RouterName = "least-loaded",
    fast: bool = True,
    pace: LinearPace = PACE,
) -> Cluster:
    def start(_: int) -> Replica:
        return Replica(config(), pace, ManualClock(), fast=fast)

    replicas = [start(place) for place in range(scaling.most)]
    return Cluster(replicas, ROUTERS[router](), scaling=scaling, failures=failures, restart=start)


def test_as_many_as_the_load_wants_and_fewer_only_after_a_while() -> None:
    rule = Autoscaler(Scaling(least=1, most=5, target=10, down_after_s=60))
    assert rule.wanted(0, 0) == 1
    assert rule.wanted(10, 1_000_000) == 1
    assert rule.wanted(11, 2_000_000) == 2
    assert rule.wanted(1000, 3_000_000) == 5
    assert rule.wanted(25, 20_000_000) == 5
    assert rule.wanted(5, 40_000_000) == 5
    assert rule.wanted(5, 63_000_000) == 5
    assert rule.wanted(5, 63_000_001) == 3  # wanted at 20 s
    assert rule.wanted(5, 80_000_001) == 1


@pytest.mark.parametrize("fast", [True, False])
def test_a_start_takes_its_time_and_who_goes_answers_first(fast: bool) -> None:
    """Steps of 100 ms. Three answers at once, each of 100 tokens (to 10 s), and a target of two: at the first look at
    2 s a second replica is wanted, which serves from 5 s on. What comes at 4 s goes to the first, what comes at 6 s to
    the second: one token of it at 6.1 s and the last, the 20th, at 8 s. At 10 s one is enough, and at 12 s that was so
    for 2 s: the second, which has nothing to do, goes. It was paid for from 2 s on."""
    scaling = Scaling(least=1, most=3, target=2, every_s=2, cold_start_s=3, down_after_s=2)
    cluster = scaled(scaling, fast=fast)
    requests = [request(n, 0.0, 10, 100) for n in range(3)]
    requests += [request(3, 4.0, 10, 1), request(4, 6.0, 10, 20), request(5, 40.0, 10, 1)]
    done = simulate(cluster, requests)
    assert [one.end_us / 1e6 for one in done.exchanges] == [10.0, 10.0, 10.0, 4.1, 8.0, 40.1]
    first, second, third = cluster.places(40_100_000)
    assert (first.paid_s, second.paid_s, third.paid_s) == (40.1, 10.0, 0.0)
    assert (first.generated_tokens, second.generated_tokens) == (302, 20)
    assert cluster.started == 1
    serve = {round(one.at_us / 1e6): one.values["replicas"] for one in done.server}
    assert (serve[1], serve[4], serve[6], serve[11], serve[13]) == (1, 1, 2, 2, 1)
    assert {round(one.at_us / 1e6): one.values["replicas_paid"] for one in done.server}[4] == 2


def test_with_none_the_first_requests_wait_for_a_start() -> None:
    """Nobody serves until somebody looks at 2 s: ten wait, and two start at once and share them, 5 s each."""
    scaling = Scaling(least=0, most=2, target=8, every_s=2, cold_start_s=0, down_after_s=0)
    cluster = scaled(scaling, router="round-robin")
    done = simulate(
        cluster,
        [*(request(n, 0.0, 10, 50) for n in range(10)), request(10, 2.5, 10, 1), request(11, 5.55, 10, 1)],
    )
    assert [one.end_us / 1e6 for one in done.exchanges[:10]] == [7.0] * 10
    assert [one.end_us for one in done.exchanges[10:]] == [2_600_000, 5_700_000]
    assert cluster.started == 2
    assert [one.values["waiting"] for one in done.server[:3]] == [10, 10, 0]


def test_who_is_to_go_is_paid_until_its_last_answer() -> None:
    """Ten answers want a second replica, which starts at 1 s. It gets the two that come at 1.5 s, since the first has
    ten, and they end at 3.5 s. Three of the first end at 2.5 s, so at 3 s nine are left, which one can have: the second
    gets nothing new from then on, has its last answer at 3.5 s and is paid for until then."""
    scaling = Scaling(least=1, most=2, target=9, every_s=1, cold_start_s=0, down_after_s=0)
    cluster = scaled(scaling)
    short = [request(n, 0.0, 10, 25) for n in range(3)]
    requests = [*short, *(request(n, 0.0, 10, 60) for n in range(3, 10))]
    requests += [request(n, 1.5, 10, 20) for n in range(10, 12)]
    requests += [request(12, 3.2, 10, 10)]
    done = simulate(cluster, requests)
    assert [one.end_us for one in done.exchanges[10:]] == [3_500_000, 3_500_000, 4_200_000]
    assert cluster.places(done.end_us)[1].paid_s == 2.5
    assert cluster.places(done.end_us)[1].generated_tokens == 40
    assert all(one.error is None for one in done.exchanges)


def test_a_replica_that_was_about_to_go_is_taken_back() -> None:
    """Nine answers want two of eight each; when six are over, at 2 s, one is to go with its long answer, and at 4 s,
    when eight new ones have come, it stays: nobody is started."""
    scaling = Scaling(least=1, most=2, target=8, every_s=1, cold_start_s=0, down_after_s=0)
    cluster = scaled(scaling, router="round-robin")
    long = [request(0, 0.0, 10, 90), *(request(n, 1.05, 10, 90) for n in (1, 2))]
    short = [request(n, 0.0, 10, 15) for n in range(3, 11)]
    later = [request(n, 3.5, 10, 15) for n in range(11, 18)]
    done = simulate(cluster, [*sorted([*long, *short], key=lambda one: one.at_s), *later])
    assert cluster.started == 1
    assert [one.error for one in done.exchanges] == [None] * 18
    assert cluster.places(done.end_us)[1].generated_tokens > 0


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_lost_and_steps_taken_together_change_nothing(router: RouterName, fails: bool) -> None:
    requests = made("chat", 25, 4.0)
    scaling = Scaling(least=1, most=4, target=2, every_s=1, cold_start_s=2, down_after_s=3)
    pace = LinearPace(per_step_s=0.010, per_token_s=0.001)
    records = []
    for fast in (True, False, True):
        failures = Failures(mtbf_s=6.0, repair_s=1.5, seed=7) if fails else None
        cluster = scaled(scaling, failures, router=router, fast=fast, pace=pace)
        done = simulate(cluster, requests)
        assert cluster.started > 2 and (cluster.failed > 1) == fails
        for one in done.exchanges:
            assert one.error is None and one.output_tokens == one.wanted_output == len(one.chunks)
        for replica in cluster.replicas:
            assert replica.idle
            replica.engine.check()
        paid_s = sum(one.paid_s for one in cluster.places(done.end_us))
        busy_s = sum(one.busy_s for one in cluster.places(done.end_us))
        assert busy_s < paid_s < 4 * done.end_us / 1e6
        records.append(msgspec.json.encode(done))
    assert records[0] == records[1] == records[2]


def test_who_dies_while_it_is_to_go_does_not_come_back() -> None:
    scaling = Scaling(least=1, most=2, target=1, every_s=1, cold_start_s=0, down_after_s=0)
    failures = Failures([Failure(1, 4_050_000, 4_500_000)])
    cluster = scaled(scaling, failures)
    # The second starts at 1 s for the long answers; the first's ends at 3 s, so at 3 s one is enough and the idle one
    # goes. The listed failure then hits nobody, or one with an answer, which goes on elsewhere.
    done = simulate(cluster, [request(0, 0.0, 10, 30), request(1, 0.0, 10, 60), request(2, 20.0, 10, 5)])
    assert [one.error for one in done.exchanges] == [None, None, None]
    assert [one.output_tokens for one in done.exchanges] == [30, 60, 5]
    assert cluster.places(done.end_us)[1].paid_s < 20


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(InvalidParameter, match="the smaller number first"):
        Scaling(least=3, most=2)
    with pytest.raises(ValueError, match="the 3 that may serve"):
        Cluster(
            [Replica(config(), PACE, ManualClock())],
            scaling=Scaling(most=3),
            restart=lambda _: Replica(config(), PACE, ManualClock()),
        )
