"""The lesson's figures to their last digit, and that its order turns round once both pay for their prompts."""

from __future__ import annotations

import pytest

from octavo.simulation.tutorial import BATCHES, PROMPT_TOKEN_MS, continuous, requests, static

STATIC = {
    0.25: [(60.82, 78.8), (11.15, 429.6), (4.13, 1160.1)],
    2.0: [(84.06, 57.0), (20.70, 231.5), (9.20, 521.0)],
}
CONTINUOUS = {
    0.25: [(60.82, 78.8), (10.04, 477.2), (5.48, 873.9)],
    2.0: [(84.06, 57.0), (33.28, 144.0), (28.72, 166.8)],
}


@pytest.mark.parametrize("prompt_token_ms", PROMPT_TOKEN_MS)
def test_the_figures_are_the_lesson_s(prompt_token_ms: float) -> None:
    for figures, runs in (
        (STATIC, [static(requests(), batch, prompt_token_ms) for batch in BATCHES]),
        (CONTINUOUS, [continuous(requests(), batch, prompt_token_ms) for batch in BATCHES]),
    ):
        assert [(round(one.seconds, 2), round(one.tokens_s, 1)) for one in runs] == figures[prompt_token_ms]


@pytest.mark.parametrize("prompt_token_ms", PROMPT_TOKEN_MS)
@pytest.mark.parametrize("batch", BATCHES[1:])
def test_where_both_pay_for_every_prompt_continuous_wins(prompt_token_ms: float, batch: int) -> None:
    pairs = requests()
    alike, other = (
        static(pairs, batch, prompt_token_ms, "each"),
        continuous(pairs, batch, prompt_token_ms),
    )
    assert alike.prompts_s == pytest.approx(other.prompts_s)
    assert other.seconds < alike.seconds


def test_alone_both_are_the_same() -> None:
    assert (
        static(requests(), 1, 0.25) == static(requests(), 1, 0.25, "each") == continuous(requests(), 1, 0.25)
    )
