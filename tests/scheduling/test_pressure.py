"""Memory and slots under pressure: who leaves, who is preempted, who goes on. Docstrings name the cases."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from octavo.backends.base import ChoiceRule
from octavo.engine.engine import Engine
from octavo.scheduling.inputs import Add
from octavo.scheduling.outputs import SequenceOutput
from tests.fakes import END, limits, make_engine, request, run, tokens


def stage_of(engine: Engine, name: str) -> str:
    """Where a request is: queued, mid-chunk, mid-decode, preempted, or with one child of four at its end."""
    ours = engine._scheduler._requests.get(name)
    if ours is None:
        return "gone"
    if len(ours.sequences) + len(ours.unforked) == 3:
        return "one child of four ended"
    first = ours.sequences[0]
    if first.slot is not None:
        return "mid-decode" if first.output_tokens else "mid-chunk" if first.computed else "begun"
    return "preempted" if first.output_tokens else "queued"


STAGES = ("queued", "mid-chunk", "mid-decode", "preempted", "one child of four ended")


@pytest.mark.parametrize("depth", [0, 1])
def test_fifty_streams_that_leave_at_every_stage_leave_nothing_behind(depth: int) -> None:
    """Case 4: 50 streams, half of them closed while queued, mid-chunk, mid-decode, preempted, and with one child
    of n = 4 at its end."""

    def script(history: tuple[int, ...], rule: ChoiceRule) -> int:
        return (
            END
            if rule.seed % 4 == 3 and len(history) > rule.prompt_tokens + 3
            else (len(history) + rule.seed) % 256
        )

    def asked(number: int) -> Add:
        prompt = [(number * 13 + i) % 256 for i in range(20 + 37 * (number % 5))]
        return request(f"r{number}", prompt, n=4 if number % 5 == 3 else 1, seed=4 * number, max_tokens=60)

    sizes = limits(num_blocks=20, max_slots=6, max_step_tokens=24, max_model_len=256)
    engine = make_engine(sizes, depth=depth, script=script)
    for number in range(50):
        engine.add(asked(number))
    choose = random.Random(4)
    left: dict[str, str] = {}
    answers: dict[tuple[str, int], list[int]] = {}
    while not engine.idle:
        for name in (f"r{number}" for number in range(0, 50, 2)):
            at = stage_of(engine, name)
            if at in STAGES and Counter(left.values())[at] < 6 and name not in left and choose.random() < 0.2:
                engine.abort(name)
                left[name] = at
        for item in engine.step().items:
            answers.setdefault((item.request_id, item.child), []).extend(s.token for s in item.samples)
        engine.check()
    assert set(left.values()) == set(STAGES) and len(left) >= 20, left
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
    for number in range(50):
        if f"r{number}" in left:
            continue
        for (_, child), items in run(
            make_engine(limits(num_blocks=64), script=script), asked(number)
        ).items():
            assert answers[f"r{number}", child] == tokens(items)


def test_four_requests_that_need_most_of_the_memory_all_end() -> None:
    """Case 3: four of 40 % of the pool each. The oldest is never the victim, and every few steps get further."""
    sizes = limits(num_blocks=20, max_slots=4, max_step_tokens=64, max_model_len=256)
    engine = make_engine(sizes, script=lambda h, r: len(h) % 256)
    for number in range(4):  # 128 of 320 tokens
        engine.add(request(f"r{number}", [number] * 28, max_tokens=100))
    told, before, steps = 0, 0, 0
    while not engine.idle:
        told += sum(len(item.samples) for item in engine.step().items)
        engine.check()
        steps += 1
        if steps % 8 == 0 and not engine.idle:
            assert told > before
            before = told
    assert told == 400
    assert 1 <= engine.stats().preemptions <= 6
    opened = [o.history[0] for plan in engine.backend.plans for o in plan.opens]  # type: ignore[attr-defined]
    assert opened.count(0) == 1


@pytest.mark.parametrize("at", [15, 16, 17, 32, 33])
def test_preempted_around_the_end_of_a_block(at: int) -> None:
    """Case 2, its corner: a sequence of `at` tokens gives way, and goes on as if it had not."""
    engine = make_engine(limits(num_blocks=8, max_slots=1, max_model_len=128))
    alone = run(make_engine(), request("low", "x" * 10, max_tokens=50, seed=3, logprobs=2, ignore_eos=True))
    engine.add(request("low", "x" * 10, max_tokens=50, seed=3, logprobs=2, ignore_eos=True))
    items: list[SequenceOutput] = []
    while 10 + sum(len(item.samples) for item in items) < at:
        items += engine.step().items
    engine.add(request("high", "y", max_tokens=3, priority=-1))
    while not engine.idle:
        items += [item for item in engine.step().items if item.request_id == "low"]
    assert engine.stats().preemptions == 1
    assert items == alone["low", 0]


def test_children_of_a_long_prompt_take_its_blocks_once() -> None:
    """Case 14: n = 4 of 900 tokens takes the prompt's blocks and four times its own and one that was copied, at most;
    and what one child goes on with changes no other."""
    sizes = limits(num_blocks=128, max_step_tokens=512, max_model_len=1024)
    engine = make_engine(sizes)
    asked = request("r", [i % 256 for i in range(900)], n=4, max_tokens=40, seed=5, ignore_eos=True)
    engine.add(asked)
    most, outputs = 0, dict[int, list[int]]()
    while not engine.idle:
        for item in engine.step().items:
            outputs.setdefault(item.child, []).extend(s.token for s in item.samples)
        most = max(most, engine.stats().blocks_used)
    assert most <= -(-900 // 16) + 4 * (-(-40 // 16) + 1)
    for child in range(4):
        one = request("r", [i % 256 for i in range(900)], max_tokens=40, seed=5 + child, ignore_eos=True)
        assert outputs[child] == tokens(run(make_engine(sizes), one)["r", 0])
    assert len({tuple(answer) for answer in outputs.values()}) == 4
