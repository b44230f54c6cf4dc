"""The prefix cache at work: who computes what, who waits, who is told what. The model checks every block it reads."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.engine.engine import Engine
from octavo.memory.prefix import Chain
from octavo.scheduling.inputs import Add
from octavo.scheduling.outputs import SequenceOutput
from tests.fakes import limits, make_engine, request, run, tokens

SIZE = 16
TEXT = "".join(chr(33 + number % 90) for number in range(200))


def computed(engine: Engine) -> int:
    """Tokens that all plans so far have computed."""
    return sum(plan.tokens for plan in engine.backend.plans)  # type: ignore[attr-defined]


def cached(outputs: list[SequenceOutput]) -> int:
    return max(item.cached_tokens for item in outputs)


@pytest.mark.parametrize("length", [1, SIZE - 1, SIZE, SIZE + 1, 2 * SIZE, 2 * SIZE + 1, 100])
def test_a_prompt_is_computed_once_but_for_its_last_block(length: int) -> None:
    engine = make_engine()
    first = run(engine, request("a", TEXT[:length], max_tokens=3, ignore_eos=True))
    before = computed(engine)
    again = run(engine, request("b", TEXT[:length], max_tokens=3, ignore_eos=True))
    found = (length - 1) // SIZE * SIZE
    assert tokens(again["b", 0]) == tokens(first["a", 0])
    assert computed(engine) - before == length - found + 2
    assert (cached(first["a", 0]), cached(again["b", 0])) == (0, found)
    assert engine._scheduler.counters.prefix_queried_tokens == 2 * length
    assert engine._scheduler.counters.prefix_hit_tokens == found


def test_what_is_being_computed_is_waited_for() -> None:
    engine = make_engine(limits(max_step_tokens=24))
    names = [f"r{number}" for number in range(5)]
    outputs = run(engine, *(request(name, TEXT[:100], max_tokens=2) for name in names))
    assert len({tuple(tokens(outputs[name, 0])) for name in names}) == 1
    assert [cached(outputs[name, 0]) for name in names] == [0, 96, 96, 96, 96]
    assert computed(engine) == 100 + 4 * 4 + 5


def test_others_pass_those_that_wait_for_a_beginning() -> None:
    engine = make_engine(limits(max_step_tokens=64))
    engine.add(request("owner", TEXT[:100], max_tokens=1))
    engine.add(request("waiter", TEXT[:100], max_tokens=1))
    engine.add(request("other", "something else", max_tokens=1))
    order = []
    while not engine.idle:
        order += [item.request_id for item in engine.step().items if item.finish_reason]
    assert order.index("other") < order.index("waiter")


def test_a_waiter_goes_on_alone_when_the_owner_leaves() -> None:
    engine = make_engine(limits(max_step_tokens=32))
    engine.add(request("owner", TEXT[:128], max_tokens=1))
    engine.add(request("waiter", TEXT[:128], max_tokens=2))
    engine.step()
    engine.abort("owner")
    outputs = run(engine)
    assert len(tokens(outputs["waiter", 0])) == 2
    assert cached(outputs["waiter", 0]) == 32


def test_answers_are_found_by_the_next_turn() -> None:
    engine = make_engine(limits(num_blocks=64))
    turn = list(TEXT[:40].encode())
    for number in range(4):
        outputs = run(engine, request(f"turn {number}", turn, max_tokens=20, ignore_eos=True))
        # The last token of an answer is chosen but never computed.
        assert cached(outputs[f"turn {number}", 0]) == (0 if not number else (len(turn) - 7) // SIZE * SIZE)
        turn = [*turn, *tokens(outputs[f"turn {number}", 0]), *b"next.."]


def test_salts_and_prompt_scores_share_nothing() -> None:
    engine = make_engine()
    run(engine, request("a", TEXT[:80], cache_salt="a", max_tokens=1))
    outputs = run(engine, request("b", TEXT[:80], cache_salt="b", max_tokens=1))
    assert cached(outputs["b", 0]) == 0
    outputs = run(engine, request("c", TEXT[:80], cache_salt="a", max_tokens=1, prompt_logprobs=0))
    assert cached(outputs["c", 0]) == 0
    first = next(item.prompt_samples for item in outputs["c", 0] if item.prompt_samples)
    assert first[0] is None and len(first) == 80
    outputs = run(engine, request("d", TEXT[:80], cache_salt="a", max_tokens=1))
    assert cached(outputs["d", 0]) == 64


def test_a_preempted_sequence_finds_its_own_blocks_and_that_is_no_hit() -> None:
    """Case 13: hit rates that lie."""
    engine = make_engine(limits(num_blocks=12, max_model_len=192))
    prompts = [TEXT[40 * number : 40 * number + 40] for number in range(4)]
    outputs = run(
        engine,
        *(request(f"r{n}", prompt, max_tokens=60, ignore_eos=True) for n, prompt in enumerate(prompts)),
    )
    assert engine._scheduler.counters.preemptions >= 3
    assert engine._scheduler.counters.prefix_hit_tokens == 0
    assert engine._scheduler.counters.prefix_queried_tokens == 160
    assert all(cached(outputs[f"r{n}", 0]) == 0 for n in range(4))


def test_children_find_the_prompt_once_and_each_its_answer() -> None:
    engine = make_engine(limits(num_blocks=64))
    run(engine, request("a", TEXT[:50], max_tokens=30, n=3, temperature=1.0, ignore_eos=True))
    outputs = run(engine, request("b", TEXT[:50], max_tokens=30, n=3, temperature=1.0, ignore_eos=True))
    assert [cached(outputs["b", child]) for child in range(3)] == [48, 0, 0]


def test_the_least_recently_used_end_is_given_away_first() -> None:
    engine = make_engine(limits(num_blocks=16, max_model_len=256))
    run(engine, request("old", TEXT[:97], max_tokens=1))  # 6 full blocks, and one that gets no name
    run(engine, request("new", TEXT[1:98], max_tokens=1))
    # 13 are wanted: the 4 without a name go, the 6 of "old", and the last 3 of "new".
    run(engine, request("large", TEXT[2:200], max_tokens=1))
    outputs = run(engine, request("new again", TEXT[1:98], max_tokens=1))
    assert cached(outputs["new again", 0]) == 48
    outputs = run(engine, request("old again", TEXT[:97], max_tokens=1))
    assert cached(outputs["old again", 0]) == 0


def test_without_it_everything_is_computed() -> None:
    engine = make_engine(prefix_cache=False)
    outputs = run(engine, *(request(name, TEXT[:64], max_tokens=1) for name in "abc"))
    assert computed(engine) == 3 * 64 and not any(cached(outputs[name, 0]) for name in "abc")
    assert not len(engine._scheduler.places.sharing.prefixes)


def test_a_block_is_named_by_all_of_its_tokens() -> None:
    chain = Chain(b"", SIZE)
    assert len(chain.names(range(2 * SIZE), 2)) == 2
    with pytest.raises(AssertionError):
        chain.names(range(3 * SIZE - 1), 3)


def test_children_at_the_end_of_a_block_are_told_apart_while_their_tokens_are_being_chosen() -> None:
    """The account of memory names blocks too, in one step of several, and at depth 1 some tokens are not known then."""
    engine = make_engine(limits(num_blocks=512), depth=1)
    for number in range(40):
        run(engine, request("another step", [number], max_tokens=1 + number % 3, ignore_eos=True))
        prompt = [(number + 7 * place) % 250 for place in range(3 * SIZE - 1)]
        both = run(engine, request("both", prompt, n=2, temperature=1.0, max_tokens=4, ignore_eos=True))
        for child in range(2):
            more = request("more", [*prompt, *tokens(both["both", child])], max_tokens=2, ignore_eos=True)
            assert cached(run(engine, more)["more", 0]) == 3 * SIZE


@settings(max_examples=80)
@given(data=st.data())
def test_random_conversations_answer_as_if_alone(data: st.DataObject) -> None:
    """Prompts that begin alike in many ways, small pools, forks, aborts, two KV groups, plans in flight."""
    sizes = limits(
        num_blocks=data.draw(st.integers(14, 40), "blocks"),
        max_step_tokens=data.draw(st.integers(16, 64), "budget"),
        max_slots=data.draw(st.integers(3, 8), "slots"),
        max_model_len=14 * SIZE,
    )
    groups, depth = data.draw(st.integers(1, 2), "groups"), data.draw(st.integers(0, 1), "depth")
    engine = make_engine(sizes, groups=groups, depth=depth)
    wanted: list[Add] = []
    outputs: dict[tuple[str, int], list[SequenceOutput]] = {}
    aborted = set()
    for number in range(data.draw(st.integers(2, 10), "requests")):
        cut = data.draw(st.integers(1, 100), "shared")
        prompt = TEXT[:cut] + chr(97 + data.draw(st.integers(0, 2), "branch")) * data.draw(
            st.integers(0, 40), "own"
        )
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
        wanted.append(add)
        engine.add(add)
        for _ in range(data.draw(st.integers(0, 12), "steps")):
            for item in engine.step().items:
                outputs.setdefault((item.request_id, item.child), []).append(item)
            engine.check()
        if data.draw(st.integers(0, 5), "abort") == 0:
            victim = data.draw(st.sampled_from(wanted), "victim").request_id
            aborted.add(victim)
            engine.abort(victim)
    for pair, items in run(engine).items():
        outputs.setdefault(pair, []).extend(items)
    for add in wanted:
        if add.request_id in aborted:
            continue
        lone = run(make_engine(limits(num_blocks=512, max_model_len=14 * SIZE), prefix_cache=False), add)
        for child in range(add.params.n):
            assert tokens(outputs[add.request_id, child]) == tokens(lone[add.request_id, child])
