"""Blocks that go out to disk and come back: who finds what, who waits for how long. The model checks every block."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.engine.engine import Engine
from octavo.scheduling.inputs import Add
from octavo.scheduling.outputs import SequenceOutput
from octavo.scheduling.policies import POLICIES
from octavo.scheduling.swap import PATIENCE_S
from octavo.timing.clock import ManualClock
from tests.fakes import FETCHES, FakeDisk, limits, make_engine, request, run, tokens

SIZE = 16
TEXT = "".join(chr(33 + number % 90) for number in range(200))
FLOOD = [number % 250 for number in range(240)]
SMALL = limits(num_blocks=16, max_model_len=256)


def computed(engine: Engine) -> int:
    return sum(plan.tokens for plan in engine.backend.plans)  # type: ignore[attr-defined]


def cached(outputs: list[SequenceOutput]) -> int:
    return max(item.cached_tokens for item in outputs)


def flood(engine: Engine) -> None:
    """Every block is given away for something else."""
    run(engine, request("flood", FLOOD, max_tokens=16, ignore_eos=True, cache_salt="flood"))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("length", [1, SIZE - 1, SIZE, SIZE + 1, 2 * SIZE, 2 * SIZE + 1, 100])
def test_what_was_given_away_comes_back_but_for_its_last_block(length: int, groups: int) -> None:
    disk = FakeDisk()
    engine = make_engine(SMALL, disk=disk, groups=groups)
    add = request("a", TEXT[:length], max_tokens=3, ignore_eos=True)
    first = run(engine, add)
    flood(engine)
    before = computed(engine)
    again = run(engine, add)
    found = (length - 1) // SIZE * SIZE
    assert tokens(again["a", 0]) == tokens(first["a", 0])
    assert cached(again["a", 0]) == found == engine.stats().disk_hit_tokens
    assert computed(engine) - before == length - found + 2


def test_what_is_on_disk_is_not_written_again() -> None:
    disk = FakeDisk()
    engine = make_engine(SMALL, disk=disk)
    add = request("a", TEXT[:100], max_tokens=1)
    run(engine, add)
    flood(engine)
    mine = list(disk.held)
    assert disk.stored == len(mine) == 6
    run(engine, add)
    assert list(disk.held)[:6] == mine and disk.stored > 6  # of the flood
    stored = disk.stored
    for _ in range(3):
        flood(engine)
        assert set(list(disk.held)[-6:]) == set(mine), "what was given away last was of use last"
        run(engine, add)
    assert disk.stored == stored
    assert engine.stats().disk_bytes == stored * 4 * SIZE


def test_a_new_process_finds_what_the_one_before_left_on_disk() -> None:
    disk = FakeDisk()
    engine = make_engine(SMALL, disk=disk)
    add = request("a", TEXT[:100], max_tokens=5, ignore_eos=True)
    first = run(engine, add)
    flood(engine)
    engine = make_engine(SMALL, disk=disk.restart())
    again = run(engine, add)
    assert cached(again["a", 0]) == 96 and tokens(again["a", 0]) == tokens(first["a", 0])


def test_what_memory_holds_at_the_end_is_written_too() -> None:
    disk = FakeDisk()
    engine = make_engine(SMALL, disk=disk)
    add = request("a", TEXT[:100], max_tokens=1)
    run(engine, add)
    assert not disk.held
    engine.close()
    assert len(disk.held) == 6
    engine.close()
    outputs = run(make_engine(SMALL, disk=disk.restart()), add)
    assert cached(outputs["a", 0]) == 96


def test_after_a_step_that_failed_nothing_of_memory_is_written() -> None:
    disk = FakeDisk()
    engine = make_engine(SMALL, disk=disk)
    run(engine, request("a", TEXT[:100], max_tokens=1))
    engine.backend.launch = None  # type: ignore[assignment, method-assign]
    engine.add(request("b", TEXT[:100], max_tokens=1))
    with pytest.raises(TypeError):
        engine.step()
    engine.close()
    assert not disk.held


def test_others_pass_a_sequence_that_waits_for_the_disk() -> None:
    disk = FakeDisk()
    engine = make_engine(SMALL, disk=disk)
    run(engine, request("a", TEXT[:100], max_tokens=1))
    flood(engine)
    disk.stuck = True
    engine.add(request("again", TEXT[:100], max_tokens=1))
    engine.add(request("twin", TEXT[:100], max_tokens=1))
    engine.add(request("other", "something else", max_tokens=2))
    order: list[str] = []
    while len(order) < 3:
        order += [item.request_id for item in engine.step().items if item.finish_reason]
        engine.check()
        disk.stuck = "other" not in order
    assert order == ["other", "again", "twin"]


def test_a_disk_that_does_not_answer_is_waited_for_once() -> None:
    disk = FakeDisk()
    engine = make_engine(SMALL, disk=disk)
    clock = engine.clock
    assert isinstance(clock, ManualClock)
    add = request("a", TEXT[:100], max_tokens=1)
    run(engine, add)
    flood(engine)
    disk.stuck = True
    engine.add(add)
    for _ in range(5):
        assert not engine.step().items and not engine.idle
    clock.advance(PATIENCE_S + 0.1)
    assert cached(run(engine)["a", 0]) == 0
    flood(engine)
    assert cached(run(engine, add)["a", 0]) == 0  # at once, without a wait
    disk.stuck = False
    flood(engine)
    assert cached(run(engine, add)["a", 0]) == 96


def test_what_the_disk_lost_is_computed_and_not_asked_for_again() -> None:
    disk = FakeDisk()
    engine = make_engine(SMALL, disk=disk)
    add = request("a", TEXT[:100], max_tokens=1)
    run(engine, add)
    flood(engine)
    lost = list(disk.held)[3]
    del disk.held[lost]
    outputs = run(engine, add)
    assert cached(outputs["a", 0]) == 32
    flood(engine)
    assert lost in disk.held
    assert cached(run(engine, add)["a", 0]) == 96


def test_a_long_beginning_comes_in_portions() -> None:
    disk = FakeDisk()
    blocks = 3 * FETCHES
    sizes = limits(num_blocks=blocks + 8, max_model_len=(blocks + 8) * SIZE, max_step_tokens=512)
    engine = make_engine(sizes, disk=disk)
    prompt = [number % 251 for number in range(blocks * SIZE + 1)]
    run(engine, request("a", prompt, max_tokens=1))
    run(engine, request("flood", prompt, max_tokens=1, cache_salt="b"))
    asked = []
    engine.add(request("again", prompt, max_tokens=1))
    while not engine.idle:
        for item in engine.step().items:
            assert item.cached_tokens == blocks * SIZE
        asked.append(len(disk.asked))
    assert max(asked) == FETCHES
    assert blocks - 8 <= engine.stats().disk_hit_tokens // SIZE <= blocks


def test_nothing_is_fetched_for_a_sequence_that_has_no_room() -> None:
    disk = FakeDisk()
    engine = make_engine(SMALL, disk=disk)
    run(engine, request("a", TEXT[:100], max_tokens=1))
    flood(engine)
    engine.add(request("long", FLOOD[:200], max_tokens=40, ignore_eos=True, cache_salt="c"))
    for _ in range(8):
        engine.step()
    engine.add(request("a", TEXT[:100], max_tokens=1))
    for _ in range(8):
        engine.step()
        assert not disk.asked
    assert cached(run(engine)["a", 0]) == 96


def test_salts_find_nothing_of_each_other_on_disk() -> None:
    disk = FakeDisk()
    engine = make_engine(SMALL, disk=disk)
    run(engine, request("a", TEXT[:100], cache_salt="a", max_tokens=1))
    flood(engine)
    outputs = run(engine, request("b", TEXT[:100], cache_salt="b", max_tokens=1))
    assert cached(outputs["b", 0]) == 0 == engine.stats().disk_hit_tokens


@settings(max_examples=80)
@given(data=st.data())
def test_random_conversations_over_a_disk_answer_as_if_alone(data: st.DataObject) -> None:
    """A pool that is given away all the time, a disk that is slow, small and loses things, restarts in between."""
    policy = data.draw(st.sampled_from(sorted(POLICIES)), "policy")
    sizes = limits(
        num_blocks=data.draw(st.integers(14, 24), "blocks"),
        max_step_tokens=data.draw(st.integers(16, 64), "budget") if POLICIES[policy].chunked else 14 * SIZE,
        max_slots=data.draw(st.integers(3, 8), "slots"),
        max_model_len=14 * SIZE,
    )
    groups, depth = data.draw(st.integers(1, 2), "groups"), data.draw(st.integers(0, 1), "depth")
    disk = FakeDisk(
        seed=data.draw(st.integers(0, 1000), "seed"),
        most=data.draw(st.sampled_from([10, 30, 1000]), "most"),
        losses=data.draw(st.sampled_from([0.0, 0.1]), "losses"),
        delay=data.draw(st.sampled_from([0.0, 0.5]), "delay"),
    )
    engine = make_engine(sizes, groups=groups, depth=depth, disk=disk, policy=policy)
    wanted: dict[str, Add] = {}
    outputs: dict[tuple[str, int], list[SequenceOutput]] = {}
    aborted = set()
    for number in range(data.draw(st.integers(2, 14), "requests")):
        cut = data.draw(st.sampled_from([15, 16, 17, 31, 32, 33, 64, 100]), "shared")
        own = data.draw(st.integers(0, 40), "own")
        prompt = TEXT[:cut] + chr(97 + data.draw(st.integers(0, 2), "branch")) * own
        add = request(
            f"r{number}",
            prompt,
            cache_salt=data.draw(st.sampled_from(["", "", "s"]), "salt"),
            max_tokens=data.draw(st.integers(1, 40), "outputs"),
            n=data.draw(st.integers(1, 3), "n"),
            temperature=1.0,
            ignore_eos=True,
            prompt_logprobs=data.draw(st.sampled_from([None, None, None, 0]), "scores"),
        )
        wanted[add.request_id] = add
        engine.add(add)
        for _ in range(data.draw(st.integers(0, 30), "steps")):
            for item in engine.step().items:
                outputs.setdefault((item.request_id, item.child), []).append(item)
            engine.check()
        if data.draw(st.integers(0, 5), "abort") == 0:
            victim = data.draw(st.sampled_from(sorted(wanted)), "victim")
            aborted.add(victim)
            engine.abort(victim)
        if data.draw(st.integers(0, 5), "restart") == 0:
            for pair, items in run(engine).items():
                outputs.setdefault(pair, []).extend(items)
            engine.close()
            engine = make_engine(sizes, groups=groups, depth=depth, disk=disk.restart(), policy=policy)
    for pair, items in run(engine).items():
        outputs.setdefault(pair, []).extend(items)
    for name in wanted.keys() - aborted:
        add = wanted[name]
        lone = run(make_engine(limits(num_blocks=512, max_model_len=14 * SIZE), prefix_cache=False), add)
        for child in range(add.params.n):
            assert tokens(outputs[name, child]) == tokens(lone[name, child])
