"""The scheduler with a model that checks every block it reads: conservation, order, preemption, forks, ends."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.backends.base import ChoiceRule, Plan
from octavo.scheduling.inputs import Add
from octavo.scheduling.outputs import SequenceOutput
from tests.fakes import END, come_and_go, limits, make_engine, request, run, tokens

Outputs = dict[tuple[str, int], list[SequenceOutput]]


def alone(prompt: str, **params: object) -> list[list[SequenceOutput]]:
    """What each child answers when nothing else runs and memory is ample."""
    outputs = run(make_engine(limits(num_blocks=512)), request("r", prompt, **params))
    return [outputs["r", child] for child in range(int(str(params.get("n", 1))))]


def plans(engine: object) -> list[Plan]:
    backend = engine.backend  # type: ignore[attr-defined]
    return list(backend.plans)


def test_one_request_ends_by_length_and_frees_everything() -> None:
    outputs = run(make_engine(script=lambda h, r: 65), request("r", "hello", max_tokens=5))
    assert tokens(outputs["r", 0]) == [65] * 5
    assert [item.finish_reason for item in outputs["r", 0]] == [None] * 4 + ["length"]


def test_the_answer_stops_at_the_model_length() -> None:
    outputs = run(
        make_engine(limits(max_model_len=20), script=lambda h, r: 65), request("r", "x" * 18, max_tokens=50)
    )
    assert len(tokens(outputs["r", 0])) == 2 and outputs["r", 0][-1].finish_reason == "length"


def test_end_token_stop_id_and_ignore_eos() -> None:
    def script(history: tuple[int, ...], rule: ChoiceRule) -> int:
        return END if len(history) == 8 else 66

    ended = run(make_engine(script=script), request("r", "hello", max_tokens=9))["r", 0]
    assert tokens(ended) == [66, 66, 66, END] and ended[-1].finish_reason == "stop"
    assert (
        ended[-1].stop_reason is None and ended[-1].cut_bytes == 0
    )  # a control token has no bytes in the text
    ignored = run(make_engine(script=script), request("r", "hello", max_tokens=9, ignore_eos=True))["r", 0]
    assert len(tokens(ignored)) == 9 and ignored[-1].finish_reason == "length"
    by_id = run(make_engine(script=script), request("r", "hello", max_tokens=9, stop_token_ids=(66,)))["r", 0]
    assert tokens(by_id) == [66] and by_id[-1].stop_reason == 66 and by_id[-1].cut_bytes == 1


def test_a_stop_string_is_held_back_and_cut() -> None:
    text = b"one STOP two"

    def script(history: tuple[int, ...], rule: ChoiceRule) -> int:
        return text[len(history) - 1]

    items = run(make_engine(script=script), request("r", "p", max_tokens=12, stop=("STOP",)))["r", 0]
    assert [item.held_bytes for item in items] == [0, 0, 0, 0, 1, 2, 3, 0]
    assert (items[-1].finish_reason, items[-1].stop_reason, items[-1].cut_bytes) == ("stop", "STOP", 4)
    kept = run(
        make_engine(script=script),
        request("r", "p", max_tokens=12, stop=("STOP",), include_stop_str_in_output=True),
    )["r", 0]
    assert kept[-1].cut_bytes == 0 and len(tokens(kept)) == 8
    late = run(make_engine(script=script), request("r", "p", max_tokens=12, stop=("STOP",), min_tokens=9))[
        "r", 0
    ]
    assert len(tokens(late)) == 12 and late[-1].finish_reason == "length"


@pytest.mark.parametrize("length", [255, 256])
def test_exact_capacity_is_admitted_and_one_more_is_refused_with_numbers(length: int) -> None:
    """Case 1: a prompt larger than all memory hangs nobody."""
    sizes = limits(num_blocks=16, max_model_len=256)
    fits = run(
        make_engine(sizes, script=lambda h, r: 65),
        request("r", "x" * length, max_tokens=1 if length < 256 else 0),
    )
    assert fits["r", 0][-1].finish_reason == "length"
    engine = make_engine(sizes, script=lambda h, r: 65)
    outputs = run(engine, request("big", "x" * 257, max_tokens=1), request("small", "x", max_tokens=2))
    refused = outputs["big", 0][0]
    assert (
        refused.finish_reason == "error"
        and refused.error
        and "257" in refused.error
        and "256" in refused.error
    )
    assert len(tokens(outputs["small", 0])) == 2


def test_preemption_changes_nothing_and_the_oldest_is_never_the_victim() -> None:
    """Case 2: ids, log-probabilities, and what is told of them when."""
    prompts = {f"r{i}": "abcdefgh"[i] * 40 for i in range(8)}
    params = {"max_tokens": 120, "logprobs": 0, "ignore_eos": True}
    expected = {name: alone(prompt, **params)[0] for name, prompt in prompts.items()}
    engine = make_engine(limits(num_blocks=16))
    outputs = run(engine, *(request(name, prompt, **params) for name, prompt in prompts.items()))
    assert engine.stats().preemptions >= 3
    for name in prompts:
        assert outputs[name, 0] == [msg_with(item, name) for item in expected[name]]
    opened = [o.history[0] for plan in plans(engine) for o in plan.opens]
    assert opened.count(ord("a")) == 1, "the oldest was preempted"


def msg_with(item: SequenceOutput, name: str) -> SequenceOutput:
    return SequenceOutput(**{**{f: getattr(item, f) for f in item.__struct_fields__}, "request_id": name})


def test_children_share_prompt_blocks_and_copy_only_the_partial_one() -> None:
    engine = make_engine(
        limits(num_blocks=64, max_step_tokens=256), script=lambda h, r: (len(h) + r.seed) % 256
    )
    engine.add(request("r", "x" * 90, n=4, max_tokens=10))
    engine.step()
    assert engine.stats().blocks_used == 6  # 90 tokens, computed once
    engine.step()
    assert engine.stats().blocks_used == 5 + 4  # each child has its own last block; three were copied
    assert sum(len(plan.copies) for plan in plans(engine)) == 3
    outputs = run(engine)
    assert {child for _, child in outputs} == {0, 1, 2, 3}


def test_child_i_is_seed_plus_i_alone() -> None:
    together = run(make_engine(), request("r", "hello there", n=3, seed=7, max_tokens=40))
    for child in range(3):
        single = alone("hello there", seed=7 + child, max_tokens=40)[0]
        assert tokens(together["r", child]) == tokens(single)


def test_decodes_go_on_while_a_long_prompt_is_computed_in_chunks() -> None:
    engine = make_engine(limits(max_step_tokens=32), script=lambda h, r: 65)
    engine.add(request("short", "ab", max_tokens=30))
    engine.step()
    engine.add(request("long", "x" * 200, max_tokens=2))
    for _ in range(5):
        items = engine.step().items
        assert [item.request_id for item in items] == ["short"]
    counts = [sorted(row.count for row in plan.rows) for plan in plans(engine)[1:6]]
    assert counts == [[1, 31]] * 5
    run(engine)


def test_abort_frees_blocks_wherever_the_request_is() -> None:
    engine = make_engine(limits(num_blocks=20, max_slots=4, max_step_tokens=16), script=lambda h, r: 65)
    engine.add(request("decoding", "ab", max_tokens=200))
    engine.add(request("forked", "cd", n=2, max_tokens=200))
    engine.add(request("chunking", "x" * 100, max_tokens=5))
    engine.add(request("queued", "y" * 50, max_tokens=5))
    for _ in range(3):
        engine.step()
    for name in ("chunking", "queued", "forked", "decoding", "unknown"):
        engine.abort(name)
        items = engine.step().items
        engine.check()
        assert {i.request_id for i in items if i.finish_reason == "abort"} == ({name} - {"unknown"})
    assert engine.idle and engine.stats().blocks_used == 0


def test_prompt_logprobs_come_once_with_the_first_tokens() -> None:
    engine = make_engine(limits(max_step_tokens=16))
    items = run(engine, request("r", "x" * 40, max_tokens=3, prompt_logprobs=0, ignore_eos=True))["r", 0]
    first, *rest = [item.prompt_samples for item in items]
    assert (
        len(first) == 40
        and first[0] is None
        and all(s is not None and s.logprob is not None for s in first[1:])
    )
    assert not any(rest)


def test_max_tokens_zero_scores_the_prompt_only() -> None:
    items = run(make_engine(), request("r", "hello", max_tokens=0, prompt_logprobs=1))["r", 0]
    assert len(items) == 1 and items[0].finish_reason == "length" and not items[0].samples
    assert len(items[0].prompt_samples) == 5


def test_a_request_resumes_where_it_was() -> None:
    whole = run(
        make_engine(), request("r", "resume me", n=2, max_tokens=60, ignore_eos=True, stop=("\x00\x01",))
    )
    base = request("r", "resume me", n=2, max_tokens=60, ignore_eos=True, stop=("\x00\x01",))
    for cut in (0, 1, 17, 59):
        given_before = tuple(tuple(tokens(whole["r", child])[:cut]) for child in range(2))
        resumed = type(base)(
            base.request_id, base.prompt, base.params, 0.0, given_before, (0,) if cut == 17 else ()
        )
        outputs = run(make_engine(), resumed)
        assert tokens(outputs["r", 1]) == tokens(whole["r", 1])[cut:]
        if cut == 17:
            assert ("r", 0) not in outputs
        else:
            assert tokens(outputs["r", 0]) == tokens(whole["r", 0])[cut:]


def test_a_row_that_is_not_a_number_ends_only_its_sequence() -> None:
    outputs = run(
        make_engine(script=lambda h, r: -1 if h[0] == 66 else 65),
        request("bad", "B", max_tokens=4),
        request("good", "G", max_tokens=4),
    )
    assert outputs["bad", 0][-1].finish_reason == "error" and len(tokens(outputs["good", 0])) == 4


traffic = st.lists(
    st.tuples(
        st.integers(1, 90),  # prompt tokens
        st.integers(0, 60),  # max_tokens
        st.integers(1, 3),  # n
        st.integers(0, 12),  # arrives before this step
        st.one_of(st.none(), st.integers(0, 25)),  # is aborted before this step
        st.booleans(),  # prompt logprobs
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=120)
@given(
    traffic=traffic,
    blocks=st.integers(10, 40),
    budget=st.sampled_from([4, 7, 33, 64]),
    depth=st.sampled_from([0, 1]),
    groups=st.sampled_from([1, 2]),
)
def test_random_traffic_conserves_blocks_and_answers_as_if_alone(
    traffic: list[tuple[int, int, int, int, int | None, bool]],
    blocks: int,
    budget: int,
    depth: int,
    groups: int,
) -> None:
    engine = make_engine(
        limits(num_blocks=blocks, max_slots=4, max_step_tokens=budget, max_model_len=blocks * 16),
        depth=depth,
        groups=groups,
    )
    coming = [(_request(number, one), one[3], one[4]) for number, one in enumerate(traffic)]
    outputs = come_and_go(engine, coming, most=4000, least=40)
    for number, (_, _, n, _, _, _) in enumerate(traffic):
        expected = run(
            make_engine(limits(num_blocks=512, max_step_tokens=512, max_model_len=blocks * 16)),
            _request(number, traffic[number]),
        )
        for child in range(n):
            got = outputs[f"r{number}", child]
            want = expected[f"r{number}", child]
            if got[-1].finish_reason == "abort":
                assert [s for i in got for s in i.samples] == [s for i in want for s in i.samples][
                    : len(tokens(got))
                ]
            else:
                assert got == want


def _request(number: int, traffic: tuple[int, int, int, int, int | None, bool]) -> Add:
    size, max_tokens, n, _, _, scored = traffic
    prompt = [(number * 31 + i * 7) % 256 for i in range(size)]
    return request(
        f"r{number}",
        prompt,
        max_tokens=max_tokens,
        n=n,
        seed=number,
        logprobs=0,
        stop=("ab", "\x01"),
        prompt_logprobs=0 if scored else None,
    )
