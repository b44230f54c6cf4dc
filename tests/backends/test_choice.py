"""The rule that chooses a token: published Philox vectors, filters one by one, and the distribution."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from octavo.backends.base import ChoiceRule
from octavo.backends.choice import adjust, choose, gumbel, kept, largest, log_probabilities, philox, score

VOCAB = 67  # no multiple of 4 or 32

logit = st.floats(-30, 30, width=32)
rows = hnp.arrays(np.float32, VOCAB, elements=logit) | hnp.arrays(
    np.float32,
    VOCAB,
    elements=st.sampled_from([np.float32(x) for x in (-1, 0, 0.5, 2)]),  # ties
)
histories = st.lists(st.integers(0, VOCAB - 1), max_size=20)
seeds = st.integers(0, 2**64 - 1)


def mask_of(allowed: set[int]) -> NDArray[np.int32]:
    words = np.zeros((VOCAB + 31) // 32, np.uint32)
    for token in allowed:
        words[token // 32] |= np.uint32(1 << token % 32)
    return words.view(np.int32)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_the_published_words(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: str
) -> None:
    """The known-answer vectors of Random123 for philox4x32-10."""
    (words,) = philox(counter, key)
    assert " ".join(f"{word:08x}" for word in words) == expected


def test_gumbel_noise_is_the_written_formula() -> None:
    seed, index, token = 0x0123456789ABCDEF, 7, 4 * 11 + 2
    word = philox((index, 11, 0, 0), (0x89ABCDEF, 0x01234567))[0, 2]
    uniform = (int(word) + 0.5) / 2**32
    assert gumbel(seed, index, np.array([token]))[0] == -np.log(-np.log(uniform))


def test_gumbel_noise_of_a_token_does_not_depend_on_the_others() -> None:
    everything = gumbel(42, 3, np.arange(VOCAB))
    some = np.array([5, 6, 30, 66])
    assert (gumbel(42, 3, some) == everything[some]).all()
    assert np.isfinite(everything).all()


@given(rows, st.integers(0, VOCAB + 3))
def test_largest_is_a_stable_sort_cut_short(values: NDArray[np.float32], k: int) -> None:
    naive = sorted(range(VOCAB), key=lambda i: (-values[i], i))
    assert largest(values, k).tolist() == naive[:k]


@given(rows, histories, histories, st.floats(0.1, 3), st.floats(-2, 2), st.floats(-2, 2))
def test_penalties_follow_their_definition(
    logits: NDArray[np.float32],
    prompt: list[int],
    output: list[int],
    repetition: float,
    frequency: float,
    presence: float,
) -> None:
    rule = ChoiceRule(len(prompt), repetition=repetition, frequency=frequency, presence=presence)
    adjusted = adjust(logits, prompt + output, rule)
    f = np.float32
    for token in range(VOCAB):
        expected = logits[token]
        if token in prompt + output:
            expected = expected / f(repetition) if expected > 0 else expected * f(repetition)
        if token in output:
            expected = expected - (f(frequency) * f(output.count(token)) + f(presence))
        assert adjusted[token] == expected


@given(rows, histories)
def test_penalties_of_nothing_change_nothing(logits: NDArray[np.float32], history: list[int]) -> None:
    before = logits.copy()
    assert (adjust(logits, history, ChoiceRule(0)) == before).all()
    assert (logits == before).all()


def test_bias_forces_and_forbids() -> None:
    logits = np.linspace(0, 5, VOCAB, dtype=np.float32)
    assert choose(logits, [1], ChoiceRule(1, bias=((3, 100.0),))) == 3
    assert choose(logits, [1], ChoiceRule(1, bias=((VOCAB - 1, -100.0),))) == VOCAB - 2


def test_early_bans_last_until_min_tokens() -> None:
    logits = np.zeros(VOCAB, np.float32)
    logits[9] = 5
    rule = ChoiceRule(2, min_tokens=3, banned_early=(9,))
    choices = [choose(logits, [1, 1, *output], rule) for output in ([], [4], [4, 4], [4, 4, 4])]
    assert choices == [0, 0, 0, 9]


@given(rows, st.sets(st.integers(0, VOCAB - 1), min_size=1), st.sampled_from([0.0, 0.7, 30.0]), seeds)
def test_a_mask_is_obeyed(
    logits: NDArray[np.float32], allowed: set[int], temperature: float, seed: int
) -> None:
    rule = ChoiceRule(1, seed=seed, temperature=temperature, top_p=0.9)
    assert choose(logits, [1], rule, mask_of(allowed)) in allowed


RULES = (ChoiceRule(0), ChoiceRule(0, temperature=1.0), ChoiceRule(0, temperature=1.0, top_p=0.5))


@pytest.mark.parametrize("rule", RULES)
def test_without_a_number_or_an_allowed_id_there_is_no_token(rule: ChoiceRule) -> None:
    logits = np.arange(VOCAB, dtype=np.float32)
    assert choose(logits, [], rule, mask_of(set())) == -1
    logits[5] = np.nan
    assert choose(logits, [], rule) == -1


@pytest.mark.parametrize("temperature", [5e-324, 1e-45, 1e-39, 1e-37, 1e-30])
def test_a_vanishing_temperature_is_greedy(temperature: float) -> None:
    logits = np.linspace(-3, 5, VOCAB, dtype=np.float32)
    rule = ChoiceRule(0, temperature=temperature, top_p=0.9, min_p=0.1, top_k=50)
    assert choose(logits, [], rule) == VOCAB - 1


@given(rows, histories, seeds)
def test_greedy_takes_the_lowest_of_the_best(
    logits: NDArray[np.float32], history: list[int], seed: int
) -> None:
    assert choose(logits, history, ChoiceRule(0, seed=seed)) == logits.tolist().index(logits.max())


@given(rows, seeds, st.floats(0.01, 5))
def test_top_k_1_and_a_tiny_top_p_are_greedy(
    logits: NDArray[np.float32], seed: int, temperature: float
) -> None:
    # Division rounds, so distinct logits may tie as t; then the lowest id counts. Hence the argmax of t.
    greedy = int(np.argmax(logits / np.float32(temperature)))
    assert choose(logits, [], ChoiceRule(0, seed=seed, temperature=temperature, top_k=1)) == greedy
    assert choose(logits, [], ChoiceRule(0, seed=seed, temperature=temperature, top_p=1e-9)) == greedy


@given(
    rows,
    st.integers(1, VOCAB),
    st.integers(0, VOCAB),
    st.floats(0.01, 1),
    st.floats(0, 0.99),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_a_stricter_filter_keeps_fewer(
    t: NDArray[np.float32], k: int, more_k: int, p: float, more_p: float, m: float, less_m: float
) -> None:
    def ids(top_k: int, top_p: float, min_p: float) -> set[int]:
        return set(kept(t, ChoiceRule(0, top_k=top_k, top_p=top_p, min_p=min_p)).tolist())

    strict = ids(k, p, m)
    assert strict
    assert strict <= ids(k, p, m * less_m)
    assert strict <= ids(k, p + (1 - p) * more_p, m)
    # A larger top_k spreads probability over more ids, so top_p may keep more, never fewer.
    assert strict <= ids(min(k + more_k, VOCAB), p, m)
    assert int(np.argmax(t)) in strict


@given(rows, st.floats(0.01, 0.999))
def test_top_p_keeps_the_shortest_run_that_reaches_p(t: NDArray[np.float32], p: float) -> None:
    ids = kept(t, ChoiceRule(0, top_p=p))
    assert ids.tolist() == largest(t, len(ids)).tolist()
    probabilities = np.exp(t.astype(np.float64) - np.float64(t.max()))
    probabilities /= probabilities.sum()
    assert probabilities[ids].sum() >= p - 1e-6
    assert probabilities[ids[:-1]].sum() < p + 1e-6


@given(rows, st.floats(1e-6, 1))
def test_min_p_keeps_what_is_likely_enough(t: NDArray[np.float32], m: float) -> None:
    ids = set(kept(t, ChoiceRule(0, min_p=m)).tolist())
    edge = t.max() + np.float32(np.log(m))
    assert ids == {i for i in range(VOCAB) if t[i] >= edge}


@given(rows, histories, seeds, st.integers(0, 30), st.floats(0.1, 1), st.floats(0, 0.5))
def test_a_choice_is_a_function_of_its_arguments(
    logits: NDArray[np.float32], history: list[int], seed: int, top_k: int, top_p: float, min_p: float
) -> None:
    rule = ChoiceRule(
        len(history) // 2, seed=seed, temperature=0.8, top_k=top_k, top_p=top_p, min_p=min_p, repetition=1.2
    )
    first = choose(logits, history, rule)
    choose(logits[::-1].copy(), [*history, 1], rule)
    assert choose(logits.copy(), tuple(history), rule) == first


@pytest.mark.parametrize(
    "rule",
    [
        ChoiceRule(0, temperature=1.0),
        ChoiceRule(0, temperature=0.6),
        ChoiceRule(0, temperature=1.5, top_k=12),
        ChoiceRule(0, temperature=1.0, top_p=0.8),
        ChoiceRule(0, temperature=1.0, min_p=0.1),
    ],
    ids=["softmax", "cold", "top_k", "top_p", "min_p"],
)
def test_draws_follow_the_softmax_of_the_kept(rule: ChoiceRule) -> None:
    """Pearson's chi-square of many draws, one per seed: below mean + 5 standard deviations."""
    draws = 10_000 if rule == ChoiceRule(0, temperature=1.0) else 2_000
    logits = (np.random.default_rng(5).standard_normal(24) * 1.2).astype(np.float32)
    t = logits / np.float32(rule.temperature)
    ids = np.sort(kept(t, rule))
    expected = np.exp(t[ids].astype(np.float64))
    expected *= draws / expected.sum()

    tokens = [choose(logits, [], rule_with_seed(rule, seed)) for seed in range(draws)]
    counts = np.bincount(tokens, minlength=len(logits))
    assert counts[ids].sum() == draws
    chi_square = float(((counts[ids] - expected) ** 2 / expected).sum())
    freedom = len(ids) - 1
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5


def test_successive_draws_of_one_seed_follow_the_softmax_too() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.125, 0.125], np.float32))
    rule = ChoiceRule(0, seed=99, temperature=1.0)
    counts = np.bincount([choose(logits, [0] * i, rule) for i in range(2_000)], minlength=4)
    expected = np.array([1000, 500, 250, 250])
    assert float(((counts - expected) ** 2 / expected).sum()) < 3 + 5 * 6**0.5


def rule_with_seed(rule: ChoiceRule, seed: int) -> ChoiceRule:
    return ChoiceRule(
        rule.prompt_tokens,
        seed=seed,
        temperature=rule.temperature,
        top_k=rule.top_k,
        top_p=rule.top_p,
        min_p=rule.min_p,
    )


@given(rows)
@settings(max_examples=30)
def test_logprobs_are_those_of_the_softmax(logits: NDArray[np.float32]) -> None:
    logprobs = log_probabilities(logits)
    assert logprobs.dtype == np.float32
    assert abs(np.exp(logprobs.astype(np.float64)).sum() - 1) < 1e-6
    differences = logprobs.astype(np.float64) - logits
    assert float(np.ptp(differences)) < 1e-5


def test_a_score_names_the_token_and_the_best() -> None:
    logits = np.log(np.array([0.1, 0.4, 0.1, 0.4], np.float32))
    sample = score(logits, 2, 3)
    assert sample.token == 2
    assert sample.logprob == pytest.approx(np.log(0.1), abs=1e-6)
    assert [token for token, _ in sample.top] == [1, 3, 0]
    assert score(logits, 0, 0).top == ()
