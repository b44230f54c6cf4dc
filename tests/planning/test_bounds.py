"""Bounds: closed forms by hand, and no simulated machine does more than its bound."""

from __future__ import annotations

import math

import msgspec
import pytest

from octavo.bench.measures import measure
from octavo.bench.slo import Slo
from octavo.planning.bounds import Mean, highest_rate, mean_of, most_at_once, step_bound_s
from octavo.simulation.deployment import Deployment
from octavo.simulation.pace import LinearPace
from octavo.simulation.replica import Replica
from octavo.simulation.run import simulate
from octavo.timing.clock import ManualClock
from octavo.workload.arrivals import Poisson
from octavo.workload.generate import requests_of
from octavo.workload.lengths import Fixed
from octavo.workload.spec import Workload, load_workload
from octavo.workload.summary import summarize

L4 = Deployment(model="llama-3-8b", hardware="l4", weight_bits=8, max_running=8)
MEAN = Mean(prompt=200, computed=200, output=50)


def test_steps_that_cost_the_same_are_shared_by_all_that_may_run() -> None:
    assert highest_rate(L4, LinearPace(per_step_s=0.020), MEAN, math.inf) == pytest.approx(8 / (0.020 * 50))


def test_tokens_that_cost_something_leave_no_use_for_more_at_once() -> None:
    pace = LinearPace(per_token_s=0.001)
    # each answer: 50 of its own and 200 of its prompt
    assert highest_rate(L4, pace, MEAN, math.inf) == pytest.approx(1 / (0.001 * 250), rel=0.02)


def test_a_bound_on_steps_keeps_batches_small() -> None:
    pace = LinearPace(per_step_s=0.010, per_sample_s=0.010)
    free, bound = (highest_rate(L4, pace, MEAN, limit) for limit in (math.inf, 0.050))
    assert bound < free
    assert highest_rate(L4, pace, MEAN, 0.015) == 0.0  # one token alone takes 20 ms


@pytest.mark.parametrize(
    ("slo", "seconds"),
    [
        ("ttft_p99<1s", math.inf),
        ("itl_p99<50ms", 0.050),
        ("itl_p50<50ms", math.inf),
        ("tpot_mean<30ms,itl_p99<50ms", 0.030),
    ],
)
def test_which_bounds_limit_a_step(slo: str, seconds: float) -> None:
    assert step_bound_s(Slo.parse(slo)) == seconds


def test_what_a_cache_has_is_not_computed() -> None:
    summary = summarize(requests_of(msgspec.structs.replace(load_workload("agent"), requests=200)))
    with_cache, without = (mean_of(summary, prefix_cache=one) for one in (True, False))
    assert without.computed == without.prompt and with_cache.computed < 0.6 * with_cache.prompt


def test_requests_at_once_are_those_that_memory_and_places_allow() -> None:
    limits = L4.settings.limits
    tokens = limits.num_blocks * limits.block_size
    assert most_at_once(L4, Mean(prompt=tokens // 3, computed=1, output=1)) == 2
    assert most_at_once(L4, MEAN) == 8


@pytest.mark.parametrize("hardware", ["l4", "a100-80"])
def test_no_simulated_machine_does_more(hardware: str) -> None:
    """Far beyond what it can do, all that it does is what it can."""
    one = Deployment(model="llama-3-8b", hardware=hardware, max_running=16)
    workload = Workload(
        arrivals=Poisson(rate=500.0), input=Fixed(tokens=200), output=Fixed(tokens=50), requests=200
    )
    run = simulate(Replica(one.settings, one.pace, ManualClock()), requests_of(workload))
    done = len(run.exchanges) / (run.end_us / 1e6)
    bound = highest_rate(one, one.pace, MEAN, math.inf)
    assert 0.5 * bound < done <= bound
    assert measure(run).value("error_share") == 0
