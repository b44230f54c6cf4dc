"""Requests for a vector: those of the one scheduler, with no token of output. The model checks the order of means."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.config import AllocatorName, PolicyName, Pooling
from octavo.engine.replay import replay
from octavo.scheduling.inputs import Add
from octavo.scheduling.outputs import SequenceOutput
from tests.fakes import come_and_go, hidden_of, limits, make_engine, plans_of, request, run, tokens, vector_of

TEXT = "".join(chr(33 + number % 90) for number in range(200))
BOTH: tuple[Pooling, ...] = ("mean", "last")


def expected(add: Add) -> bytes:
    """The vector of a prompt, from the scripted hidden states."""
    prompt = add.prompt
    if add.pooling == "last":
        return vector_of(hidden_of(prompt))
    total = 0.0
    for end in range(1, len(prompt) + 1):
        total += hidden_of(prompt[:end])
    return vector_of(total / len(prompt))


def vector(outputs: Sequence[SequenceOutput]) -> bytes:
    """What came back, in one output and with no token."""
    (output,) = outputs
    assert (output.samples, output.finish_reason, output.error) == ((), "stop", None)
    return output.vector


def traffic(number: int, seed: int = 0) -> list[Add]:
    """Vectors and answers in turn, over texts that begin alike."""
    choose = random.Random(seed)
    adds = []
    for i in range(number):
        text = TEXT[: choose.choice((1, 15, 16, 17, 33, 90, 150))]
        own: dict[str, Any] = {"pooling": BOTH[i % 2]} if i % 3 else {"max_tokens": choose.randrange(1, 40)}
        adds.append(request(f"r{i}", text, seed=i, priority=choose.randrange(2), tenant=f"t{i % 2}", **own))
    return adds


@pytest.mark.parametrize("pooling", BOTH)
@pytest.mark.parametrize("length", [1, 15, 16, 17, 64, 65, 200, 256])
@pytest.mark.parametrize("depth", [0, 1])
def test_the_vector_of_a_prompt(pooling: Pooling, length: int, depth: int) -> None:
    engine = make_engine(limits(max_step_tokens=24), depth=depth)
    add = request("a", (TEXT * 2)[:length], pooling=pooling)
    outputs = run(engine, add)
    assert vector(outputs["a", 0]) == expected(add)
    assert sum(plan.tokens for plan in plans_of(engine)) == length  # and nothing twice
    assert engine.stats().generation_tokens == 0


def test_a_mean_reads_no_cache_and_the_last_token_does() -> None:
    engine = make_engine()
    run(engine, request("before", TEXT[:80], max_tokens=1))
    found = {}
    for pooling in BOTH:
        add = request(pooling, TEXT[:80], pooling=pooling)
        outputs = run(engine, add)
        assert vector(outputs[pooling, 0]) == expected(add)
        found[pooling] = outputs[pooling, 0][0].cached_tokens
    assert found == {"mean": 0, "last": 64}


def test_what_a_mean_computes_is_found_by_others() -> None:
    engine = make_engine()
    run(engine, request("mean", TEXT[:80], pooling="mean"))
    outputs = run(engine, request("after", TEXT[:80], max_tokens=1))
    assert outputs["after", 0][0].cached_tokens == 64


@pytest.mark.parametrize("depth", [0, 1])
def test_preempted_in_the_middle(depth: int) -> None:
    """Earlier requests take its slot or its memory while its prompt is half computed: the sum begins anew."""
    engine = make_engine(limits(num_blocks=16, max_slots=3, max_step_tokens=24), depth=depth)
    late = [request(f"late {pooling}", TEXT[:120], pooling=pooling, priority=5) for pooling in BOTH]
    for add in late:
        engine.add(add)
    for _ in range(3):
        engine.step()
    early = [request(f"early {n}", TEXT[n:][:100], max_tokens=9, ignore_eos=True) for n in range(1, 5)]
    outputs = run(engine, *early)
    assert engine.stats().preemptions > 0
    assert [vector(outputs[add.request_id, 0]) for add in late] == [expected(add) for add in late]
    assert all(len(tokens(outputs[add.request_id, 0])) == 9 for add in early)


@pytest.mark.parametrize("policy", get_args(PolicyName))
@pytest.mark.parametrize("allocator", get_args(AllocatorName))
def test_every_policy_and_allocator(policy: PolicyName, allocator: AllocatorName) -> None:
    engine = make_engine(
        limits(num_blocks=40, max_slots=4, max_step_tokens=256), policy=policy, allocator=allocator
    )
    adds = traffic(14)
    outputs = run(engine, *adds)
    for add in adds:
        if add.pooling is not None:
            assert vector(outputs[add.request_id, 0]) == expected(add)
        else:
            assert tokens(outputs[add.request_id, 0]) == tokens(run(make_engine(), add)[add.request_id, 0])


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), depth=st.sampled_from([0, 1]), chunk=st.integers(3, 64))
def test_random_traffic_that_comes_and_goes(seed: int, depth: int, chunk: int) -> None:
    """Whoever stays gets its vector; whoever leaves, at any stage, gets none and leaves nothing behind."""
    choose = random.Random(seed)
    engine = make_engine(limits(num_blocks=18, max_slots=4, max_step_tokens=chunk), depth=depth)
    adds = traffic(12, seed)
    leaving = [choose.randrange(40) if choose.random() < 0.4 else None for _ in adds]
    coming = [choose.randrange(20) for _ in adds]
    outputs = come_and_go(engine, list(zip(adds, coming, leaving, strict=True)), most=3000, least=40)
    for add, leaves in zip(adds, leaving, strict=True):
        told = outputs.get((add.request_id, 0), [])
        if add.pooling is not None and told and told[-1].finish_reason != "abort":
            assert vector(told) == expected(add)
        else:
            assert add.pooling is None or leaves is not None
            assert not any(one.vector for one in told)


def test_a_failed_model_is_an_error_and_no_vector() -> None:
    engine = make_engine()
    backend = engine.backend
    collect = backend.collect
    engine.backend.collect = lambda handle: tuple(  # type: ignore[method-assign]
        type(sample)(-1) for sample in collect(handle)
    )
    (output,) = run(engine, request("a", TEXT[:20], pooling="mean"))["a", 0]
    assert output.finish_reason == "error" and output.error and not output.vector


@pytest.mark.parametrize("depth", [0, 1])
def test_a_replay_gives_the_same_plans(tmp_path: Path, depth: int) -> None:
    path = tmp_path / "steps.jsonl"
    sizes = limits(num_blocks=18, max_slots=4, max_step_tokens=24)
    engine = make_engine(sizes, depth=depth, log=str(path))
    run(engine, *traffic(14))
    engine.close()
    [report] = replay(path)
    assert report.difference is None and not report.unfinished and not report.cut
    assert report.steps == engine.stats().steps
