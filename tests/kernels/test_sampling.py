"""The choice of a token and the scores: against the NumPy rule, with equal answers on every instruction set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from octavo.backends.base import ChoiceRule
from octavo.backends.choice import adjust, choose, gumbel, kept, largest, log_probabilities, philox

ops = pytest.importorskip("octavo._kernels", reason="the kernels are not built").ops

ISAS: list[str] = ops.isas()
Floats = NDArray[np.float32]
F32 = np.float32
EDGE = 2e-6
"""Where the running probability is this close to top_p, float32 exponentials may end the run elsewhere."""


def single(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, width=32, allow_subnormal=False)


def run(logits: Floats, history: list[int], rule: ChoiceRule, mask: NDArray[np.int32] | None = None) -> int:
    """The kernels' choice, which must be the same on every instruction set."""
    banned = rule.banned_early if len(history) - rule.prompt_tokens < rule.min_tokens else ()
    arguments: dict[str, Any] = {
        name: getattr(rule, name)
        for name in (
            *("prompt_tokens", "seed", "temperature", "top_k", "top_p", "min_p"),
            *("repetition", "frequency", "presence", "bias"),
        )
    }
    before = logits.copy()
    answers = {
        ops.choose(logits, np.array(history, np.int32), banned=banned, mask=mask, isa=isa, **arguments)
        for isa in ISAS
    }
    np.testing.assert_array_equal(logits, before)
    (answer,) = answers
    assert isinstance(answer, int)
    return answer


def allowed(
    logits: Floats, history: list[int], rule: ChoiceRule, mask: NDArray[np.int32] | None = None
) -> set[int]:
    """What the rule allows: one id, or a few where top_p's edge is within rounding."""
    answers = {choose(logits, history, rule, mask)}
    if rule.temperature > 0 and rule.top_p < 1 and -1 not in answers:
        t = adjust(logits, history, rule, mask) / F32(rule.temperature)
        ids = kept(t, ChoiceRule(0, top_k=rule.top_k or len(t)))
        running = np.cumsum(np.exp((t[ids] - t[ids[0]]).astype(np.float64)))
        first, last = (np.searchsorted(running, (rule.top_p + e) * running[-1]) for e in (-EDGE, EDGE))
        end: int | np.intp = len(ids)
        if rule.min_p > 0:
            end = np.count_nonzero(t[ids] >= t[ids[0]] + F32(np.log(rule.min_p)))
        ids = ids[: min(last + 1, end)]
        values = t[ids].astype(np.float64) + gumbel(rule.seed, len(history) - rule.prompt_tokens, ids)
        best = np.maximum.accumulate(values)  # of every shorter run
        answers |= {int(ids[np.argmax(values == b)]) for b in set(best[min(first, len(ids) - 1) :])}
    return answers


def mask_of(ids: NDArray[np.bool_]) -> NDArray[np.int32]:
    packed = np.packbits(ids, bitorder="little")
    return np.pad(packed, (0, -len(packed) % 4)).view(np.int32)


@st.composite
def rows(draw: st.DrawFn) -> Floats:
    """Logits of many shapes: wide, narrow, equal, tied, with −inf, of every length around the vectors' and chunks'."""
    vocab = draw(st.sampled_from([1, 3, 15, 16, 17, 63, 64, 65, 300, 1025, 3000]))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    row = random.standard_normal(vocab).astype(F32) * F32(draw(st.sampled_from([0, 1e-6, 0.3, 3, 40, 1e4])))
    row += F32(draw(st.sampled_from([0, -7, 300])))
    if draw(st.booleans()):
        row = np.round(row * 2) / F32(2)
    if draw(st.booleans()):
        row[random.random(vocab) < 0.5] = -np.inf
        row[random.integers(vocab)] = 0
    return row


@st.composite
def rules(draw: st.DrawFn, vocab: int, prompt: int) -> ChoiceRule:
    def maybe(strategy: st.SearchStrategy[Any], otherwise: object) -> Any:
        return draw(st.one_of(st.just(otherwise), strategy))

    ids = st.integers(0, vocab - 1)
    return ChoiceRule(
        prompt,
        seed=draw(st.integers(0, 2**64 - 1)),
        temperature=draw(st.sampled_from([0.0, F32(1e-4).item(), 0.5, 1.0, F32(0.7).item(), 2.0, 100.0])),
        top_k=maybe(st.integers(1, vocab + 2), 0),
        top_p=maybe(single(0.0625, 1.0) | st.sampled_from([0.5, 0.9990234375]), 1.0),
        min_p=maybe(single(2**-20, 1.0), 0.0),
        repetition=maybe(single(0.5, 2), 1.0),
        frequency=maybe(single(-2, 2), 0.0),
        presence=maybe(single(-2, 2), 0.0),
        bias=tuple(sorted(maybe(st.dictionaries(ids, single(-100, 100), max_size=5), {}).items())),
        min_tokens=draw(st.integers(0, 4)),
        banned_early=maybe(st.lists(ids, max_size=3).map(tuple), ()),
    )


@settings(max_examples=400)
@given(st.data(), rows())
def test_the_choice_is_the_rules(data: st.DataObject, logits: Floats) -> None:
    vocab = len(logits)
    ids = st.lists(st.integers(0, vocab - 1), max_size=30)
    prompt, output = data.draw(ids), data.draw(ids)
    rule = data.draw(rules(vocab, len(prompt)))
    mask = None
    if data.draw(st.booleans()):
        random = np.random.default_rng(data.draw(st.integers(0, 99)))
        mask = mask_of(random.random(vocab) < data.draw(st.sampled_from([0.02, 0.5, 0.98])))
    assert run(logits, prompt + output, rule, mask) in allowed(logits, prompt + output, rule, mask)


REAL_RULES = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.0, "top_p": 0.999},
    {"temperature": 1.0, "top_p": 1 - 2**-20},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.95},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.5, "top_k": 5000},
    {"temperature": 1.5, "top_k": 40000, "top_p": 0.9},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 1.0, "min_p": 1.0},
    {"temperature": 0.9, "top_k": 100, "min_p": 0.01, "repetition": 1.25, "frequency": 0.5, "presence": 0.25},
]


@pytest.mark.parametrize("rule", REAL_RULES, ids=str)
@pytest.mark.parametrize("vocab", [49152, 151937])
def test_real_vocabularies(vocab: int, rule: dict[str, Any]) -> None:
    random = np.random.default_rng(vocab)
    history = [int(i) for i in random.integers(0, vocab, 500)]
    for seed in range(3):
        logits = random.standard_normal(vocab).astype(F32) * F32(2.5)
        logits[random.integers(0, vocab, 300)] += random.exponential(4, 300).astype(F32)
        row = ChoiceRule(200, seed=seed, **rule)
        assert run(logits, history, row) in allowed(logits, history, row)


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
def test_one_allowed_id_is_chosen_however_unlikely(temperature: float) -> None:
    logits = np.linspace(60, -60, 5000, dtype=F32)
    for only in (0, 17, 4999):
        rule = ChoiceRule(0, temperature=temperature, top_p=0.5, top_k=3, min_p=0.5)
        assert run(logits, [], rule, mask_of(np.arange(5000) == only)) == only


@pytest.mark.parametrize("filters", [{}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.5}])
@pytest.mark.parametrize("temperature", [0.0, 1e-37, 1.0])
def test_without_a_number_or_an_allowed_id_there_is_no_token(
    temperature: float, filters: dict[str, Any]
) -> None:
    rule = ChoiceRule(0, temperature=temperature, **filters)
    logits = np.arange(100, dtype=F32)
    assert run(logits, [], rule, mask_of(np.zeros(100, bool))) == -1
    logits[97] = np.nan
    assert run(logits, [], rule) == -1
    hidden = ChoiceRule(0, temperature=temperature, min_tokens=1, banned_early=(97,), **filters)
    assert run(logits, [], hidden) == -1


def test_a_temperature_that_overflows_is_greedy_with_ties() -> None:
    logits = np.array([-5, 30, 2, 40, 40, -np.inf] * 20, F32)
    for temperature, expected in ((1e-45, 3), (2e-38, 1), (1e-30, 3)):
        rule = ChoiceRule(0, temperature=temperature, top_p=0.5, min_p=0.5, top_k=7)
        assert run(logits, [], rule) == expected == choose(logits, [], rule)


@pytest.mark.parametrize("filters", [{}, {"top_k": 11}, {"top_p": 0.9}])
def test_draws_follow_the_distribution(filters: dict[str, Any]) -> None:
    """Chi-square of 10,000 draws; 60 is passed by chance once in 10⁵ at 23 degrees of freedom. The seeds are fixed."""
    logits = np.linspace(-2, 2, 24, dtype=F32)
    ids = kept(logits, ChoiceRule(0, **filters))
    p = np.zeros(24)
    p[ids] = np.exp(logits[ids].astype(np.float64))
    expected = 10_000 * p / p.sum()
    counts = np.zeros(24)
    history = np.zeros(100, np.int32)
    for seed in range(100):
        for index in range(100):
            counts[ops.choose(logits, history[:index], seed=seed, temperature=1.0, **filters)] += 1
    assert counts[expected == 0].sum() == 0
    some = expected > 0
    assert ((counts - expected)[some] ** 2 / expected[some]).sum() < 60


@pytest.mark.parametrize(("top_p", "count"), [(0.25, 32), (0.5, 64), (0.75, 96), (1 - 2**-24, 128)])
def test_a_run_that_ends_exactly_on_an_id_ends_there(top_p: float, count: int) -> None:
    """Of equal logits the lowest ids are kept, and in 3,000 draws each of them comes."""
    logits = np.zeros(128, F32)
    rules = (ChoiceRule(0, seed=seed, temperature=1.0, top_p=top_p) for seed in range(3000))
    assert {run(logits, [], rule) for rule in rules} == set(range(count))


@pytest.mark.parametrize("isa", ISAS)
def test_random_words_are_philox(isa: str) -> None:
    assert [f"{w:08x}" for w in ops.random_words(0, 0, 4, isa=isa)] == [
        "6627e8d5",
        "e169c58d",
        "bc57ac4c",
        "9b00dbd8",
    ]
    seed, index = 0xFEDCBA9876543210, 123456
    expected = philox((index, np.arange(30, dtype=np.uint64), 0, 0), (seed & 0xFFFFFFFF, seed >> 32)).reshape(
        -1
    )
    np.testing.assert_array_equal(ops.random_words(seed, index, 117, isa=isa), expected[:117])


@settings(max_examples=200)
@given(rows(), st.integers(0, 120), st.integers(0, 2**31))
def test_scores_are_the_log_softmax_and_its_largest(logits: Floats, top: int, pick: int) -> None:
    token, top = pick % len(logits), min(top, len(logits))
    expected, order = log_probabilities(logits), largest(logits, top)
    first, *others = [ops.score(logits, token, top, isa=isa) for isa in ISAS]
    p, ids, values = first
    np.testing.assert_array_equal(ids, order)
    np.testing.assert_allclose([p, *values], expected[[token, *order]], rtol=2e-7, atol=1e-6)
    for other in others:
        assert other[0] == p
        np.testing.assert_array_equal(other[1], ids)
        np.testing.assert_array_equal(other[2], values)


def test_scores_of_nan_are_nan() -> None:
    logits = np.zeros(100, F32)
    logits[50] = np.nan
    assert np.isnan(ops.score(logits, 3, 5)[0])
