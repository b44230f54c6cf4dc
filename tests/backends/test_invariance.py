"""Promise 1 at the backend: the same sequence gives the same bits, whatever is beside it and however it is cut.

All comparisons are `==` on ids and float32 log-probabilities.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from octavo.backends.base import Backend, ChoiceRule
from tests.backends.conftest import make_backend
from tests.backends.driver import WHOLE, Ask, Told, run

GREEDY = ChoiceRule(0, logprobs=5)
SEEDED = ChoiceRule(0, seed=7, temperature=1.0, logprobs=5)
BUSY = ChoiceRule(
    0,
    seed=2**64 - 1,
    temperature=0.9,
    top_k=40,
    top_p=0.95,
    min_p=0.01,
    repetition=1.1,
    frequency=0.2,
    presence=0.1,
    bias=((5, 1.5), (200, -3.0)),
    min_tokens=4,
    banned_early=(2,),
    logprobs=0,
)


def prompt(length: int) -> tuple[int, ...]:
    """Random ids of the tiny model."""
    return tuple(random.Random(length).choices(range(3, 287), k=length))


# Lengths around the block (16), and one beyond a segment of attention (256).
ASKS = [
    Ask(prompt(1), 9, SEEDED),
    Ask(prompt(5), 14, GREEDY, prompt_top=3),
    Ask(prompt(15), 12, BUSY),
    Ask(prompt(16), 12, SEEDED, prompt_top=0),
    Ask(prompt(17), 12, GREEDY),
    Ask(prompt(70), 10, BUSY),
    Ask(prompt(300), 8, SEEDED, prompt_top=2),
]


KINDS = [(name, kv_dtype) for name in ("reference", "native") for kv_dtype in ("fp32", "bf16", "int8")]


@pytest.fixture(params=KINDS, ids="-".join, scope="module")
def kind(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A backend's name and its KV type."""
    name, kv_dtype = request.param
    return name, kv_dtype


@pytest.fixture(scope="module")
def backend(kind: tuple[str, str], tiny_model_path: Path) -> Iterator[Backend]:
    """One for all tests, so that the KV memory is never clean: what others left in it must not matter."""
    backend = make_backend(kind[0], tiny_model_path, kv_dtype=kind[1])
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def alone(kind: tuple[str, str], tiny_model_path: Path) -> list[Told]:
    """Each request alone in a new backend, its prompt whole."""
    backend = make_backend(kind[0], tiny_model_path, kv_dtype=kind[1])
    told = [run(backend, [ask])[0] for ask in ASKS]
    backend.close()
    return told


def test_answers_have_what_was_asked(alone: list[Told]) -> None:
    for ask, told in zip(ASKS, alone, strict=True):
        assert ask.rule is not None
        assert len(told.tokens) == ask.new_tokens
        assert len(told.prompt) == (0 if ask.prompt_top is None else len(ask.prompt) - 1)
        for sample, target in zip(told.prompt, ask.prompt[1:], strict=False):
            assert (sample.token, len(sample.top)) == (target, ask.prompt_top)
        for sample in told.children[0]:
            assert len(sample.top) == ask.rule.logprobs
            assert sample.logprob is not None
            assert sample.logprob < 0


@pytest.mark.parametrize("chunk", [1, 7, 32, 33, WHOLE])
def test_together_and_in_chunks(backend: Backend, alone: list[Told], chunk: int) -> None:
    assert run(backend, ASKS, chunk=chunk, seed=chunk) == alone


def test_in_another_order_and_arriving_late(backend: Backend, alone: list[Told]) -> None:
    order = list(range(len(ASKS)))[::-1]
    late = [Ask(a.prompt, a.new_tokens, a.rule, 1, a.prompt_top, 3 * i) for i, a in enumerate(ASKS)]
    told = run(backend, [late[i] for i in order], chunk=32, seed=1)
    assert told == [alone[i] for i in order]


@pytest.mark.parametrize("chunk", [7, WHOLE])
def test_dropped_and_recomputed(backend: Backend, alone: list[Told], chunk: int) -> None:
    assert run(backend, ASKS[:6], chunk=chunk, drop_every=13, seed=2) == alone[:6]


@pytest.mark.parametrize("rule", [GREEDY, SEEDED, BUSY], ids=["greedy", "seeded", "busy"])
@pytest.mark.parametrize("length", [15, 16, 17, 70])
def test_children_equal_single_sequences(backend: Backend, rule: ChoiceRule, length: int) -> None:
    """n = 3 shares the prompt's blocks and copies the partial last one at the first write."""
    singles = []
    for i in range(3):
        child = msgspec.structs.replace(rule, seed=(rule.seed + i) % 2**64)
        singles.append(run(backend, [Ask(prompt(length), 20, child)])[0].children[0])
    for chunk in (7, WHOLE):
        told = run(backend, [ASKS[1], Ask(prompt(length), 20, rule, n=3), ASKS[5]], chunk=chunk)
        assert list(told[1].children) == singles
    if rule.temperature > 0:
        assert len({tuple(sample.token for sample in child) for child in singles}) == 3


def test_a_full_batch_of_equals(backend: Backend, alone: list[Told]) -> None:
    """The same sequence in every slot: sixteen rows of one plan, equal to each other and to one alone."""
    assert run(backend, [ASKS[4]] * 16) == [alone[4]] * 16
