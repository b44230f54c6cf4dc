"""`Stretch.advance(k)` equals k single steps: tokens, tables, pools, counters, the model of step times, the report."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.engine.engine import Engine
from octavo.scheduling.stretch import Stretch
from tests.fakes import limits, make_engine, request, timed

TOKEN = 65


def started(requests: list[tuple[int, int, str]], blocks: int, prefix_cache: bool) -> Engine:
    """An engine whose sequences all decode, or wait."""
    engine = make_engine(
        limits(num_blocks=blocks, max_slots=6, max_step_tokens=256),
        script=lambda history, rule: TOKEN,
        prefix_cache=prefix_cache,
    )
    timed(engine, lambda plan: 2**-7 + plan.tokens * 2**-10)
    for number, (size, length, tenant) in enumerate(requests):
        prompt = [(i * 7) % 250 for i in range(size)]
        engine.add(request(f"r{number}", prompt, max_tokens=length, ignore_eos=True, tenant=tenant))
    for _ in range(3):
        engine.step()
    return engine


def state(engine: Engine) -> dict[str, Any]:
    """All that a later decision can depend on."""
    scheduler = engine._scheduler
    report = scheduler.report()
    return {
        "sequences": [
            (s.request.id, s.tokens, s.total, s.computed, s.told, s.stored, s.writable, s.slot)
            for s in scheduler.running
        ],
        "tables": [[t.blocks for t in s.tables] for s in scheduler.running],
        "free": [(list(p._free), list(p._kept), p.names()) for p in scheduler.places.pools],
        "counters": scheduler.counters,
        "order": scheduler.order._served,
        "timed": (scheduler._timed, scheduler.step_time.factors),
        "report": [round(value, 9) if isinstance(value, float) else value for value in vars_of(report)],
    }


def vars_of(report: Any) -> list[Any]:
    return [getattr(report, name) for name in report.__struct_fields__]


@settings(max_examples=150)
@given(
    requests=st.lists(
        st.tuples(st.integers(1, 70), st.integers(6, 90), st.sampled_from(["", "a"])), min_size=1, max_size=5
    ),
    blocks=st.integers(14, 40),
    prefix_cache=st.booleans(),
    share=st.floats(0.0, 1.0),
)
def test_advance_equals_single_steps(
    requests: list[tuple[int, int, str]], blocks: int, prefix_cache: bool, share: float
) -> None:
    one, other = (started(requests, blocks, prefix_cache) for _ in range(2))
    assert state(one) == state(other)
    most = Stretch(one._scheduler, TOKEN).most()
    steps = round(share * most)
    texts: dict[str, int] = {}
    ends: dict[str, str | None] = {}
    times = [one.clock.now_s()]
    for _ in range(steps):
        for item in one.step().items:
            assert item.finish_reason is None or len(times) == most
            texts[item.request_id] = texts.get(item.request_id, 0) + len(item.samples)
            ends[item.request_id] = item.finish_reason
        times.append(one.clock.now_s())
    if steps:
        scheduler = other._scheduler
        scheduler.lasted(other._duration_s)
        Stretch(scheduler, TOKEN).advance(times)
        outputs = scheduler.take_outputs()
        assert {item.request_id: len(item.samples) for item in outputs} == texts
        assert {item.request_id: item.finish_reason for item in outputs} == ends
    ours, theirs = state(one), state(other)
    assert ours == theirs
    other.check()


def test_most_is_as_far_as_it_can_be_known() -> None:
    engine = started([(20, 30, ""), (20, 50, "")], 40, True)
    stretch = Stretch(engine._scheduler, TOKEN)
    assert stretch.most() == 27 and stretch.ends  # three tokens are out; with the last one a sequence ends
    with pytest.raises(ValueError, match="28 equal steps were asked for, and 27 are certain"):
        stretch.advance([0.01 * step for step in range(29)])
    assert Stretch(started([(20, 30, "")], 40, True)._scheduler, 256).most() == 27  # ignore_eos
    short = started([(60, 90, ""), (60, 90, "")], 10, False)
    assert 0 < Stretch(short._scheduler, TOKEN).most() <= 20, "the memory ends before the answers do"
    engine.add(request("late", "x", max_tokens=3))
    engine.step()
    assert Stretch(engine._scheduler, TOKEN).most() > 0
