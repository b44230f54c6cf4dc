"""Every policy with every allocator, and what else may be set: all ends well, and the work is the same."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any, get_args

import msgspec
import pytest

from octavo.backends.base import Limits
from octavo.bench.record import Run
from octavo.config import AllocatorName, PolicyName, ProfileName
from octavo.scheduling.profiles import PROFILES, Targets
from octavo.scheduling.settings import SchedulerConfig
from octavo.simulation.asking import Asking
from octavo.simulation.deployment import Deployment
from octavo.simulation.guessing import Guessing
from octavo.simulation.pace import LinearPace
from octavo.simulation.replica import Replica
from octavo.simulation.run import simulate
from octavo.timing.clock import ManualClock
from octavo.workload.request import Part, Request

PACE = LinearPace(per_step_s=0.008, per_token_s=2e-5, per_kv_token_s=5e-8, per_pair_s=1e-9)
POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)
ALLOCATORS: tuple[AllocatorName, ...] = get_args(AllocatorName)


def workload(count: int = 12) -> list[Request]:
    """Pairs begin alike; lengths and gaps vary, priorities too; some come while memory is full."""
    times_s = sorted(0.03 * (n * n % 7) for n in range(count))
    return [
        Request(
            index=n,
            at_s=times_s[n],
            session=n,
            priority=n % 3 - 1,
            tenant=("a", "b")[n % 2],
            parts=(Part(f"both/{n // 2}", 48), Part(f"own/{n}", 10 + 37 * n % 101)),
            output_tokens=5 + 53 * n % 91,
        )
        for n in range(count)
    ]


def replica(policy: PolicyName = "stall-free", allocator: AllocatorName = "paged", **more: Any) -> Replica:
    limits = Limits(num_blocks=112, block_size=16, max_slots=16, max_step_tokens=512, max_model_len=512)
    engine = {name: more.pop(name) for name in ("guessing", "fast") if name in more}
    config = SchedulerConfig(limits, 1, (), policy=policy, allocator=allocator, **more)
    return Replica(config, PACE, ManualClock(), **engine)


def answered(run: Run, replica: Replica, answers: int) -> None:
    """Nothing leaks, all are answered, and with as many tokens as were asked for."""
    replica.engine.check()
    assert replica.stats.blocks_used == 0 and replica.idle
    assert [one.error for one in run.exchanges] == [None] * len(run.exchanges)
    asked = {one.index: one.output_tokens for one in workload()}
    assert {one.index: one.output_tokens for one in run.exchanges} == {
        index: answers * tokens for index, tokens in asked.items()
    }


@pytest.mark.parametrize(
    ("policy", "allocator"),
    [
        pytest.param(*one, marks=() if one == ("stall-free", "paged") else pytest.mark.slow)
        for one in product(POLICIES, ALLOCATORS)
    ],
)
def test_every_policy_and_allocator_with_cache_answers_and_guesses(
    policy: PolicyName, allocator: AllocatorName
) -> None:
    for cache, n, guessing in product(
        (True, False), (1, 3), (None, Guessing(chances=(0.6,)), Guessing(chances=(0.6,), tokens=3))
    ):
        one = replica(policy, allocator, prefix_cache=cache, guessing=guessing)
        run = simulate(one, workload(), asking=Asking(n=n))
        answered(run, one, n)
        assert bool(one.stats.prefix_hit_tokens) is (cache and allocator == "paged")
        assert bool(one.stats.accepted_tokens) is (guessing is not None)


@pytest.mark.parametrize("policy", POLICIES)
def test_beams_with_every_policy_where_blocks_may_be_shared(policy: PolicyName) -> None:
    for cache in (True, False):
        one = replica(policy, prefix_cache=cache)
        answered(simulate(one, workload(), asking=Asking(beam_width=3, n=2)), one, 2)
        assert one.engine.report().sharing_saved > 0


@pytest.mark.parametrize("asking", [Asking(), Asking(n=3), Asking(beam_width=4, n=2)])
@pytest.mark.parametrize("guessing", [None, Guessing(chances=(0.6, 0.3), drafting=0.5)])
def test_two_runs_are_equal_to_the_last_byte(asking: Asking, guessing: Guessing | None) -> None:
    one, other = (
        msgspec.json.encode(simulate(replica(guessing=guessing), workload(), asking=asking)) for _ in range(2)
    )
    assert one == other and b'"chunks":[[' in one


@pytest.mark.parametrize("targets", [*PROFILES.values(), Targets(tbt_s=0.012), Targets(ttft_s=0.2)])
def test_targets_change_plans_and_equal_steps_are_still_equal(targets: Targets) -> None:
    """As a server does, an engine with a target for its steps times some before the first."""
    records = []
    for fast in (True, False):
        one = replica(targets=targets, fast=fast)
        run = simulate(one, workload())
        answered(run, one, 1)
        timed = targets.between_s(None, in_first_sentence=True) is not None
        assert bool(one.scheduler.config.measured) is timed
        records.append(msgspec.json.encode(run))
    assert records[0] == records[1]


def test_a_target_for_steps_is_kept_by_smaller_pieces_of_prompts() -> None:
    """8 ms a step and 20 µs a token: 12 ms leave 200 tokens at most. Prompts of 400 come while others decode."""
    first = Request(index=0, at_s=0.0, session=0, parts=(Part("a", 20),), output_tokens=80)
    long = [
        Request(index=n, at_s=0.1 * n, session=n, parts=(Part(f"{n}", 400),), output_tokens=3)
        for n in range(1, 4)
    ]
    worst = {}
    for name, targets in {"none": Targets(), "12 ms": Targets(tbt_s=0.012)}.items():
        one = simulate(replica(targets=targets), [first, *long]).exchanges[0]
        times = [chunk.at_us for chunk in one.chunks]
        worst[name] = max(after - before for before, after in pairwise(times))
    assert worst["12 ms"] <= 12_000 < worst["none"]


def test_a_deployment_has_the_server_s_knobs_and_they_reach_the_scheduler() -> None:
    settings = Deployment(
        model="llama-3-8b", hardware="a100-80", tbt_target_s=0.05, ttft_target_s=2.0, profile="chat",
        priority_aging_s=5.0, policy="continuous", allocator="reserved-pow2", prefix_cache=False, block_size=32,
        max_running=100, max_step_tokens=1024, max_model_len=4096,
    ).settings  # fmt: skip
    assert settings.targets == Targets(ttft_s=2.0, tbt_s=0.05)
    assert (settings.aging_s, settings.policy, settings.allocator) == (5.0, "continuous", "reserved-pow2")
    assert (settings.limits.block_size, settings.limits.max_slots, settings.step_tokens) == (32, 100, 1024)
    assert settings.limits.max_model_len == 4096 and not settings.prefix_cache
    names: tuple[ProfileName, ...] = get_args(ProfileName)
    for name in names:
        assert (
            Deployment(model="llama-3-8b", hardware="h100", profile=name).settings.targets == PROFILES[name]
        )
