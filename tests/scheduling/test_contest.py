"""`best_of` and beam search: the answers of a naive search, whatever the memory, and every block is given back."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import InvalidParameter
from octavo.sampling.params import SamplingParams
from octavo.scheduling.inputs import Add
from tests.fakes import END, come_and_go, limits, logprob_of, make_engine, plans_of, request, run, tokens

Answer = tuple[list[int], str]


def beams(name: str, prompt: str, width: int, **params: object) -> Add:
    return request(name, prompt, beam_width=width, temperature=0.0, **params)


def naive(prompt: str, width: int, n: int, length: int, *, penalty: float, early: object) -> list[Answer]:
    """Beam search over whole sequences, as Hugging Face describes it: no blocks, nothing shared, nothing forked."""
    start = tuple(prompt.encode())
    living: list[tuple[float, tuple[int, ...]]] = [(0.0, start)]
    done: list[tuple[float, int, list[int], str]] = []
    for grown in range(1, length + 1):
        steps = []
        for place, (total, history) in enumerate(living):
            ranked = sorted((-logprob_of(history, t), t) for t in range(END + 1))[: 2 * width]
            steps += [(-(total - negative), place, t) for negative, t in ranked]
        steps.sort()
        following: list[tuple[float, tuple[int, ...]]] = []
        for place, (negative, parent, token) in enumerate(steps[: 2 * width]):
            history = (*living[parent][1], token)
            ended = token == END or grown == length
            if ended and (place < width or grown == length):
                reason = "stop" if token == END else "length"
                done.append((-negative / grown**penalty, len(done), list(history[len(start) :]), reason))
            elif not ended and len(following) < width:
                following.append((-negative, history))
        living = following
        best = sorted(done, key=lambda one: (-one[0], one[1]))[:width]
        if len(best) == width and living:
            if early is True:
                break
            reach = length if early == "never" and penalty > 0 else grown
            if living[0][0] / reach**penalty <= best[-1][0]:
                break
        if not living:
            break
    ranked_done = sorted(done, key=lambda one: (-one[0], one[1]))
    return [(ids, reason) for _, _, ids, reason in ranked_done[:n]]


def answers(outputs: dict, name: str, n: int) -> list[Answer]:  # type: ignore[type-arg]
    result = []
    for child in range(n):
        [item] = outputs[name, child]
        result.append((tokens([item]), item.finish_reason))
    return result


@pytest.mark.parametrize("width", [1, 2, 4, 7])
@pytest.mark.parametrize("penalty", [0.0, 1.0, -1.0])
@pytest.mark.parametrize("early", [True, False, "never"])
def test_beam_search_finds_what_a_naive_search_finds(width: int, penalty: float, early: object) -> None:
    n = min(width, 3)
    engine = make_engine(limits(num_blocks=128))
    asked = beams("r", "a beam", width, n=n, max_tokens=20, length_penalty=penalty, early_stopping=early)
    got = answers(run(engine, asked), "r", n)
    assert got == naive("a beam", width, n, 20, penalty=penalty, early=early)


def test_beams_share_the_blocks_that_they_have_in_common() -> None:
    engine = make_engine(limits(num_blocks=128, max_step_tokens=256))
    engine.add(beams("r", "x" * 100, 4, n=1, max_tokens=40, ignore_eos=True))
    most = 0
    while not engine.idle:
        engine.step()
        engine.check()
        most = max(most, engine.stats().blocks_used)
    assert most <= 6 + 4 * 4, "the prompt is stored once"
    assert any(plan.copies for plan in plans_of(engine)), "a fork in the middle of a block copies it"


def test_a_stop_string_ends_a_beam() -> None:
    engine = make_engine(limits(num_blocks=128))
    free = answers(run(make_engine(), beams("r", "stop", 3, n=3, max_tokens=12)), "r", 3)
    stop = bytes(free[0][0][2:4]).decode("latin-1")
    outputs = run(
        engine, beams("r", "stop", 3, n=3, max_tokens=12, stop=(stop,) if stop.isascii() else ("zz",))
    )
    for child in range(3):
        item = outputs["r", child][0]
        text = bytes(t for t in tokens([item]) if t != END)
        if item.stop_reason == stop:
            assert text.endswith(stop.encode()) and item.cut_bytes == len(stop.encode())
        else:
            assert stop.encode() not in text


def test_logprobs_of_a_beam_are_as_many_as_asked_for() -> None:
    items = run(make_engine(), beams("r", "logs", 3, n=2, max_tokens=6, logprobs=2))["r", 1]
    for sample in items[0].samples:
        assert sample.logprob is not None and len(sample.top) == 2
    bare = run(make_engine(), beams("r", "logs", 3, n=2, max_tokens=6))["r", 1]
    assert tokens(bare) == tokens(items) and all(s.logprob is None for s in bare[0].samples)


@pytest.mark.parametrize("best_of", [3, 6])
def test_best_of_gives_the_likeliest_of_its_attempts(best_of: int) -> None:
    asked = request("r", "best", n=2, best_of=best_of, seed=5, max_tokens=30)
    got = answers(run(make_engine(), asked), "r", 2)
    attempts = []
    for child in range(best_of):
        items = run(make_engine(), request("r", "best", seed=5 + child, max_tokens=30, logprobs=0))["r", 0]
        samples = [sample for item in items for sample in item.samples]
        mean = sum(sample.logprob or 0.0 for sample in samples) / len(samples)
        attempts.append((-mean, child, [s.token for s in samples], items[-1].finish_reason))
    assert got == [(ids, reason) for _, _, ids, reason in sorted(attempts)[:2]]


def test_prompt_logprobs_come_with_the_best_answer() -> None:
    outputs = run(make_engine(), request("r", "hello", n=2, best_of=3, prompt_logprobs=0, max_tokens=4))
    assert len(outputs["r", 0][0].prompt_samples) == 5 and not outputs["r", 1][0].prompt_samples


def test_an_aborted_search_frees_everything_and_tells_n_ends() -> None:
    for steps in range(8):
        engine = make_engine(limits(max_step_tokens=24))
        engine.add(beams("b", "x" * 60, 4, n=2, max_tokens=30, ignore_eos=True))
        engine.add(request("o", "y" * 30, n=1, best_of=3, max_tokens=30, ignore_eos=True))
        for _ in range(steps):
            engine.step()
        engine.abort("b")
        engine.abort("o")
        items = engine.step().items
        engine.check()
        ended = [(item.request_id, item.child) for item in items if item.finish_reason == "abort"]
        assert sorted(ended) == [("b", 0), ("b", 1), ("o", 0)]
        assert engine.idle and engine.stats().blocks_used == 0


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"n": 3, "beam_width": 2, "temperature": 0.0}, "beam_width"),
        ({"beam_width": 2}, "temperature"),
        ({"beam_width": 2, "temperature": 0.0, "presence_penalty": 1.0}, "presence_penalty"),
        ({"beam_width": 99, "temperature": 0.0}, "beam_width"),
        ({"beam_width": 2, "temperature": 0.0, "early_stopping": "soon"}, "early_stopping"),
    ],
)
def test_what_cannot_be_ranked_is_refused_by_name(params: dict[str, object], name: str) -> None:
    with pytest.raises(InvalidParameter) as error:
        SamplingParams(**params)  # type: ignore[arg-type]
    assert error.value.param == name and name in str(error.value)


def test_a_group_that_could_outgrow_the_memory_is_refused_with_the_numbers() -> None:
    engine = make_engine(limits(num_blocks=16, max_model_len=256))
    [item] = run(engine, beams("r", "x" * 60, 4, max_tokens=30))["r", 0]
    assert item.finish_reason == "error" and "384" in (item.error or "") and "256" in (item.error or "")
    reserved = make_engine(allocator="reserved-oracle")
    [item] = run(reserved, beams("r", "x", 4, max_tokens=3))["r", 0]
    assert item.finish_reason == "error" and "allocator" in (item.error or "")


@settings(max_examples=100)
@given(
    traffic=st.lists(
        st.tuples(
            st.integers(1, 70),  # prompt tokens
            st.integers(1, 24),  # max_tokens
            st.sampled_from(["beam", "best_of", "plain"]),
            st.integers(2, 4),  # attempts
            st.integers(0, 10),  # arrives before this step
            st.one_of(st.none(), st.integers(0, 25)),  # is aborted before this step
        ),
        min_size=1,
        max_size=5,
    ),
    blocks=st.integers(24, 40),
    budget=st.sampled_from([4, 9, 64]),
    depth=st.sampled_from([0, 1]),
    prefix_cache=st.booleans(),
)
def test_random_contests_are_decided_as_if_alone(
    traffic: list[tuple[int, int, str, int, int, int | None]],
    blocks: int,
    budget: int,
    depth: int,
    prefix_cache: bool,
) -> None:
    """In small pools, where groups are preempted and computed again."""
    engine = make_engine(
        limits(num_blocks=blocks, max_slots=6, max_step_tokens=budget, max_model_len=96),
        depth=depth,
        prefix_cache=prefix_cache,
    )
    adds = []
    for number, (size, length, kind, attempts, _, _) in enumerate(traffic):
        prompt = bytes((number * 31 + i * 7) % 128 for i in range(size)).decode()
        params = {"max_tokens": length, "n": 2, "seed": number}
        if kind == "beam":
            adds.append(beams(f"r{number}", prompt, attempts, **params))
        else:
            own = {"best_of": attempts} if kind == "best_of" else {}
            adds.append(request(f"r{number}", prompt, **params, **own))
    coming = [(add, arrival, leaving) for add, (*_, arrival, leaving) in zip(adds, traffic, strict=True)]
    outputs = come_and_go(engine, coming, most=4000, least=30)
    for number, add in enumerate(adds):
        expected = run(make_engine(limits(num_blocks=512, max_model_len=96)), add)
        for child in range(2):
            got, want = outputs[f"r{number}", child], expected[f"r{number}", child]
            if got[-1].finish_reason == "abort":
                assert tokens(got) == tokens(want)[: len(tokens(got))]
            else:
                assert tokens(got) == tokens(want)
                assert msgspec.structs.replace(got[-1], cached_tokens=0) == want[-1]
