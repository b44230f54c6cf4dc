"""Drafts never change an answer: right, wrong or random, in chunks, preempted, with forks, ends and penalties."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.scheduling.inputs import Add
from octavo.scheduling.outputs import SequenceOutput
from octavo.speculation.drafter import Guess, Text
from octavo.speculation.ngram import NgramDrafter
from octavo.speculation.speculator import Speculator
from tests.fakes import come_and_go, limits, make_engine, plans_of, request, run, tokens
from tests.speculation.drafting import Drafting, Kind


class Counting(NgramDrafter):
    """Counts how often it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def draft(self, texts: Sequence[Text], count: int) -> list[list[Guess]]:
        self.calls += 1
        return super().draft(texts, count)


Told = dict[tuple[str, int], tuple[object, ...]]


def told(outputs: dict[tuple[str, int], list[SequenceOutput]]) -> Told:
    """What each sequence was told in the end, however it was cut into steps."""
    return {
        name: (
            [sample for item in items for sample in item.samples],
            [item.prompt_samples for item in items if item.prompt_samples],
            items[-1].finish_reason,
            items[-1].stop_reason,
            items[-1].cut_bytes,
        )
        for name, items in outputs.items()
    }


def answers_of(outputs: dict[tuple[str, int], list[SequenceOutput]]) -> dict[tuple[str, int], list[int]]:
    return {name: tokens(items) for name, items in outputs.items()}


def test_right_drafts_save_steps_and_wrong_ones_none() -> None:
    asked = request("r", "hello", max_tokens=60, ignore_eos=True)
    plain = make_engine(script=lambda h, r: len(h) % 256)
    expected = run(plain, asked)
    steps = {}
    for kind in ("right", "wrong"):
        engine = make_engine(
            script=lambda h, r: len(h) % 256,
            speculator=lambda s, kind=kind: Drafting(s, answers_of(expected), kind, 4),  # type: ignore[misc]
        )
        assert told(run(engine, asked)) == told(expected)
        steps[kind] = len(plans_of(engine))
        counters = engine._scheduler.counters
        assert counters.accepted_tokens == (counters.draft_tokens if kind == "right" else 0)
        assert counters.draft_tokens > 0
    assert steps["wrong"] == len(plans_of(plain)) == 60
    assert steps["right"] == 1 + -(-59 // 5)


def test_no_block_is_kept_for_drafts_that_were_wrong() -> None:
    asked = request("r", "x" * 14, max_tokens=40, ignore_eos=True)
    expected = answers_of(run(make_engine(), asked))
    engine = make_engine(speculator=lambda s: Drafting(s, expected, "wrong", 8))
    engine.add(asked)
    while not engine.idle:
        engine.step()
        known = sum(one.computed for one in engine._scheduler.running)
        assert engine.stats().blocks_used == -(-known // 16)


def test_the_prefix_cache_is_told_of_what_was_right_only() -> None:
    asked = request("first", "x" * 20, max_tokens=50, ignore_eos=True, seed=1)
    expected = answers_of(run(make_engine(), asked))
    turn = tuple(b"x" * 20) + tuple(expected["first", 0]) + tuple(b"and then?")
    second = request("second", turn, max_tokens=10, ignore_eos=True)
    answers = {**expected, **answers_of(run(make_engine(), second))}
    for kind in ("right", "wrong", "random"):
        engine = make_engine(speculator=lambda s, kind=kind: Drafting(s, answers, kind, 5))  # type: ignore[misc]
        assert answers_of(run(engine, asked)) == expected
        assert answers_of(run(engine, second))["second", 0] == answers["second", 0]
        assert engine.stats().prefix_hit_tokens == 64


def test_nothing_is_guessed_for_what_memory_has_no_room() -> None:
    """A draft model would be asked for nothing."""
    asked = Counting(), Counting()
    for drafter, blocks in zip(asked, (64, 7), strict=True):
        engine = make_engine(
            limits(num_blocks=blocks, max_model_len=96),
            script=lambda h, r: 65 + len(h) % 2,
            speculator=lambda s, drafter=drafter: Speculator(drafter, s, fixed=4),  # type: ignore[misc]
        )
        run(engine, *(request(f"r{n}", "abcd", max_tokens=12, ignore_eos=True) for n in range(3)))
    assert asked[0].calls > 0 == asked[1].calls


@pytest.mark.parametrize("kind", ["right", "wrong", "random"])
def test_beams_are_not_guessed(kind: Kind) -> None:
    asked = request("r", "hello", max_tokens=9, n=2, beam_width=3, temperature=0.0)
    expected = run(make_engine(), asked)
    guesses = {("r", child): [65] * 9 for child in range(3)}
    engine = make_engine(speculator=lambda s: Drafting(s, guesses, kind, 3))
    assert told(run(engine, asked)) == told(expected)
    assert engine._scheduler.counters.draft_tokens == 0


traffic = st.lists(
    st.tuples(
        st.integers(1, 60),  # prompt tokens
        st.integers(0, 40),  # max_tokens
        st.integers(1, 3),  # n
        st.integers(0, 12),  # arrives before this step
        st.booleans(),  # prompt logprobs
        st.sampled_from(["", "a", "b"]),  # tenant
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=25)
@given(
    traffic=traffic,
    blocks=st.integers(10, 40),
    budget=st.sampled_from([4, 7, 33, 64]),
    depth=st.sampled_from([0, 1]),
    groups=st.sampled_from([1, 2]),
    policy=st.sampled_from(["stall-free", "continuous", "prefill-first", "static"]),
    allocator=st.sampled_from(["paged", "reserved-oracle"]),
    kind=st.sampled_from(["right", "wrong", "random"]),
    most=st.integers(1, 8),
)
def test_random_traffic_is_answered_as_without(
    traffic: list[tuple[int, int, int, int, bool, str]],
    blocks: int,
    budget: int,
    depth: int,
    groups: int,
    policy: str,
    allocator: str,
    kind: Kind,
    most: int,
) -> None:
    def asked(number: int) -> Add:
        size, max_tokens, n, _, scored, tenant = traffic[number]
        return request(
            f"r{number}",
            [(number * 31 + i * 7) % 256 for i in range(size)],
            max_tokens=max_tokens,
            n=n,
            seed=number,
            logprobs=1,
            stop=("ab", "\x01"),
            prompt_logprobs=0 if scored else None,
            tenant=tenant,
        )

    length = min(blocks * 16, 256)
    expected: dict[tuple[str, int], list[SequenceOutput]] = {}
    for number in range(len(traffic)):
        ample = limits(num_blocks=512, max_step_tokens=512, max_model_len=length)
        expected.update(run(make_engine(ample), asked(number)))
    engine = make_engine(
        limits(
            num_blocks=blocks,
            max_slots=4,
            max_step_tokens=256 if policy != "stall-free" else budget,
            max_model_len=length,
        ),
        depth=depth,
        groups=groups,
        policy=policy,
        allocator=allocator,
        speculator=lambda s: Drafting(s, answers_of(expected), kind, most),
    )
    coming = [(asked(number), one[3], None) for number, one in enumerate(traffic)]
    outputs = come_and_go(engine, coming, most=4000, least=15)
    assert told(outputs) == told(expected)
