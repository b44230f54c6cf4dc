"""Every policy and allocator: each request is answered as if alone, blocks are conserved, and steps are as named."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.config import AllocatorName, PolicyName
from tests.fakes import come_and_go, limits, make_engine, plans_of, request, run, tokens

POLICIES = get_args(PolicyName)
ALLOCATORS = get_args(AllocatorName)


def kinds(plan: object) -> str:
    """What is in a plan: `d` for decodes, `p` for prompts."""
    counts = [row.count for row in plan.rows]  # type: ignore[attr-defined]
    return ("d" if 1 in counts else "") + ("p" if any(count > 1 for count in counts) else "")


def mixed_traffic(policy: PolicyName) -> list[str]:
    """The steps of a short request that runs, while a prompt of 100 tokens comes; budget 64."""
    engine = make_engine(limits(max_step_tokens=256), script=lambda h, r: 65, policy=policy, budget_tokens=64)
    engine.add(request("short", "ab", max_tokens=12))
    engine.step()
    engine.step()
    engine.add(request("long", "x" * 100, max_tokens=2))
    run(engine)
    return [kinds(plan) for plan in plans_of(engine)[2:]]


def test_stall_free_gives_a_prompt_what_the_decodes_leave() -> None:
    assert mixed_traffic("stall-free")[:3] == ["dp", "dp", "d"]


def test_continuous_takes_a_whole_prompt_into_a_step_with_decodes() -> None:
    assert mixed_traffic("continuous")[:3] == ["dp", "d", "d"]


def test_prefill_first_pauses_the_decodes_for_a_prompt() -> None:
    assert mixed_traffic("prefill-first")[:3] == ["p", "d", "d"]


def test_static_lets_nobody_in_before_the_batch_has_ended() -> None:
    steps = mixed_traffic("static")
    assert steps == ["d"] * 10 + ["p", "d"]


def test_static_keeps_slot_and_memory_of_a_sequence_that_ended() -> None:
    engine = make_engine(script=lambda h, r: 65, policy="static")
    engine.add(request("a", "x" * 20, max_tokens=2))
    engine.add(request("b", "y" * 20, max_tokens=10))
    for _ in range(6):
        engine.step()
        engine.check()
    assert engine.stats().running == 1 and engine.stats().blocks_used == 4
    outputs = run(engine)
    assert len(tokens(outputs["b", 0])) == 4 and engine._scheduler.counters.idle_slot_steps == 8


def test_a_batch_whose_last_sequence_is_aborted_gives_everything_back() -> None:
    engine = make_engine(script=lambda h, r: 65, policy="static")
    engine.add(request("a", "x" * 20, max_tokens=2))
    engine.add(request("b", "y" * 20, max_tokens=10))
    for _ in range(4):
        engine.step()
    engine.abort("b")
    engine.step()
    engine.check()
    assert engine.idle and engine.stats().blocks_used == 0


@pytest.mark.parametrize(
    ("allocator", "blocks"),
    [("paged", 2), ("reserved-oracle", 3), ("reserved-pow2", 4), ("reserved-max", 16)],
)
def test_what_an_allocator_takes_at_admission(allocator: AllocatorName, blocks: int) -> None:
    engine = make_engine(limits(max_model_len=256), script=lambda h, r: 65, allocator=allocator)
    engine.add(request("r", "x" * 20, max_tokens=20))
    engine.step()
    assert engine.stats().blocks_used == blocks
    run(engine)


def test_a_reserved_range_is_contiguous_and_a_hole_that_is_too_small_refuses() -> None:
    engine = make_engine(
        limits(num_blocks=8, max_model_len=128), script=lambda h, r: 65, allocator="reserved-oracle"
    )
    for name, size, length in (("a", 30, 2), ("b", 30, 18), ("c", 30, 2), ("d", 10, 6)):
        engine.add(request(name, name * size, max_tokens=length))  # 2, 3, 2 and 1 blocks
    for _ in range(4):
        engine.step()
    engine.add(request("e", "e" * 60, max_tokens=4))  # four blocks: free are 0, 1 and 5, 6, and then 7
    engine.step()
    places = engine._scheduler.places
    assert places.pools[0].free >= 4 and places.pools[0].longest_hole < 4
    assert engine.stats().waiting == 1 and places.refused_blocks >= 4
    outputs = run(engine)
    assert len(tokens(outputs["e", 0])) == 4


traffic = st.lists(
    st.tuples(
        st.integers(1, 90),  # prompt tokens
        st.integers(1, 40),  # max_tokens
        st.integers(1, 3),  # n
        st.integers(0, 12),  # arrives before this step
        st.one_of(st.none(), st.integers(0, 25)),  # is aborted before this step
        st.integers(-2, 2),  # priority
        st.sampled_from(["", "a", "b"]),  # tenant
        st.sampled_from([None, "chat", "voice", "batch"]),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=200)
@given(
    traffic=traffic,
    blocks=st.integers(12, 40),
    budget=st.sampled_from([7, 33, 64]),
    depth=st.sampled_from([0, 1]),
    policy=st.sampled_from(POLICIES),
    allocator=st.sampled_from(ALLOCATORS),
    step_s=st.sampled_from([0.0, 0.01, 3.0]),
)
def test_random_traffic_is_answered_as_if_alone(
    traffic: list[tuple[int, int, int, int, int | None, int, AllocatorName, PolicyName]],
    blocks: int,
    budget: int,
    depth: int,
    policy: PolicyName,
    allocator: AllocatorName,
    step_s: float,
) -> None:
    """Whatever the policy, the allocator, the priority, the tenant and the profile."""
    engine = make_engine(
        limits(num_blocks=blocks, max_slots=4, max_step_tokens=256, max_model_len=min(blocks * 16, 192)),
        depth=depth,
        policy=policy,
        allocator=allocator,
        budget_tokens=budget,
    )
    adds = [
        request(
            f"r{number}",
            [(number * 31 + i * 7) % 256 for i in range(size)],
            max_tokens=length,
            n=n,
            seed=number,
            logprobs=0,
            stop=("ab",),
            priority=priority,
            tenant=tenant,
            profile=profile,
        )
        for number, (size, length, n, _, _, priority, tenant, profile) in enumerate(traffic)
    ]
    coming = [
        (add, arrival, leaving) for add, (_, _, _, arrival, leaving, *_) in zip(adds, traffic, strict=True)
    ]
    outputs = come_and_go(
        engine,
        coming,
        most=6000,
        least=40,
        between=lambda: engine.clock.advance(step_s),  # type: ignore[attr-defined]
    )
    for number, add in enumerate(adds):
        sizes = limits(num_blocks=512, max_step_tokens=512, max_model_len=min(blocks * 16, 192))
        expected = run(make_engine(sizes), add)
        for child in range(traffic[number][2]):
            got, want = outputs[f"r{number}", child], expected[f"r{number}", child]
            if got[-1].finish_reason == "abort":
                assert tokens(got) == tokens(want)[: len(tokens(got))]
            else:
                assert tokens(got) == tokens(want)
                assert got[-1].finish_reason == want[-1].finish_reason
