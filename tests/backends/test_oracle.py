"""The default model against the oracle: fp32 log-probabilities, greedy tokens and margins of eleven prompts.

The oracle was computed elsewhere, in fp32, from the same file's dequantised weights.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.backends.base import ChoiceRule, Limits
from tests.backends.conftest import MakeBackend, make_backend
from tests.backends.driver import Ask, run

LIMITS = Limits(num_blocks=160, block_size=16, max_slots=16, max_step_tokens=256, max_model_len=256)


class Case(msgspec.Struct):
    """One prompt of the oracle."""

    prompt_ids: tuple[int, ...]
    prompt_logprobs: tuple[float | None, ...]
    top20_ids: tuple[int, ...]
    """The most likely after the prompt, best first."""
    top20_logprobs: tuple[float, ...]
    greedy_ids: tuple[int, ...]
    greedy_margin: tuple[float, ...]
    """Between the best two logits where each greedy token was chosen."""


@pytest.fixture(scope="module")
def cases(shared_dir: Path) -> list[Case]:
    text = (shared_dir / "oracle" / "smollm2-135m.json").read_bytes()
    return msgspec.json.decode(text, type=list[Case])


@pytest.mark.slow
def test_reference_is_the_fp32_computation(make: MakeBackend, model_dir: Path, cases: list[Case]) -> None:
    """Prompts in chunks of 64 and all in one batch; tokens are generated, not fed."""
    backend = make("reference", model_dir, LIMITS)
    rule = ChoiceRule(0, logprobs=20)
    asks = [Ask(case.prompt_ids, len(case.greedy_ids), rule, prompt_top=0) for case in cases]
    for case, told in zip(cases, run(backend, asks, chunk=64), strict=True):
        scores = [sample.logprob for sample in told.prompt]
        assert scores == pytest.approx(case.prompt_logprobs[1:], abs=0.002)
        first = told.children[0][0]
        assert tuple(token for token, _ in first.top) == case.top20_ids
        assert [logprob for _, logprob in first.top] == pytest.approx(case.top20_logprobs, abs=0.002)
        assert told.tokens == case.greedy_ids


@pytest.fixture(scope="module")
def errors(model_dir: Path, cases: list[Case]) -> NDArray[np.float64]:
    """How far native's log-probabilities are: of every prompt token, and of the 20 best after each prompt.

    Teacher-forced: the oracle's own tokens are fed, so that one near tie does not spoil what follows.
    """
    backend = make_backend("native", model_dir, LIMITS)
    asks = [Ask(case.prompt_ids + case.greedy_ids, prompt_top=100) for case in cases]
    found: list[float] = []
    for case, told in zip(cases, run(backend, asks, chunk=64), strict=True):
        for sample, expected in zip(told.prompt, case.prompt_logprobs[1:], strict=False):
            assert sample.logprob is not None
            assert expected is not None
            found.append(sample.logprob - expected)
        greedy = told.prompt[len(case.prompt_ids) - 1 :]
        best = dict(greedy[0].top)
        found += [best[i] - x for i, x in zip(case.top20_ids, case.top20_logprobs, strict=True)]
        for sample, token, margin in zip(greedy, case.greedy_ids, case.greedy_margin, strict=True):
            assert margin < 0.5 or sample.top[0][0] == token
    backend.close()
    assert len(found) == sum(len(case.prompt_ids) - 1 + 20 for case in cases)
    return np.abs(found)


def test_native_is_near_the_fp32_computation(errors: NDArray[np.float64]) -> None:
    assert errors.max() <= 0.5
    assert np.quantile(errors, 0.95) <= 0.15
