"""What is sampled behind guesses has the model's distribution: chi-square over 10,000 sequences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import exp
from pathlib import Path

import pytest

from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.engine import Engine
from octavo.models.store import open_model
from octavo.scheduling.inputs import Draft
from octavo.scheduling.scheduler import Scheduler
from octavo.scheduling.verifying import Verified
from tests.fakes import request, run, tokens

PROMPT = tuple(range(20, 40))
RUNS, EACH = 100, 100
TOP = 3
CRITICAL = 22.46
"""Of chi-square with 6 degrees of freedom (three tokens behind each of three beginnings): passed once in a thousand."""


class Second:
    """Guesses the second token of each answer by its first."""

    def __init__(self, scheduler: Scheduler, by_first: dict[int, int]) -> None:
        self._scheduler, self._by_first = scheduler, by_first
        self.accepted_at: list[int] = []
        self.reached_at: list[int] = []
        self.accepted = 0

    def propose(self) -> tuple[Draft, ...]:
        begun = [one for one in self._scheduler.running if len(one.tokens) - one.prompt_tokens == 1]
        return tuple(Draft(one.request.id, one.child, (self._by_first[one.tokens[-1]],)) for one in begun)

    def verified(self, drafts: Sequence[Verified]) -> None:
        self.accepted += sum(one.accepted for one in drafts)

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass


def next_tokens(engine: Engine, beginning: tuple[int, ...]) -> dict[int, float]:
    """The most likely tokens behind it, and the probability of each among them."""
    asked = request("next", beginning, max_tokens=1, logprobs=TOP, ignore_eos=True)
    [item] = run(engine, asked)["next", 0]
    weights = {token: exp(logprob) for token, logprob in item.samples[0].top}
    return {token: weight / sum(weights.values()) for token, weight in weights.items()}


def likeliest(shares: dict[int, float]) -> int:
    return max(shares, key=shares.__getitem__)


@pytest.mark.slow
def test_sampled_tokens_have_the_models_distribution(tiny_model_path: Path) -> None:
    stored = open_model(tiny_model_path, packed=False)
    settings = {"model_dir": str(stored.dir), "backend": "reference", "num_blocks": 1000, "max_running": 128}
    engine = build_engine(EngineConfig(**settings, speculation="off", prefix_cache=False))  # type: ignore[arg-type]
    firsts = next_tokens(engine, PROMPT)
    seconds = {first: likeliest(next_tokens(engine, (*PROMPT, first))) for first in firsts}
    expected = {first: next_tokens(engine, (*PROMPT, first, second)) for first, second in seconds.items()}
    guesses = Second(engine._scheduler, seconds)
    engine._speculator = guesses  # type: ignore[assignment]
    counted = {first: Counter[int]() for first in firsts}
    for number in range(RUNS):
        asked = request(
            f"r{number}", PROMPT, n=EACH, seed=number * EACH, top_k=TOP, max_tokens=3, ignore_eos=True
        )
        for items in run(engine, asked).values():
            first, second, third = tokens(items)
            if second == seconds[first]:
                counted[first][third] += 1
    engine.close()
    assert guesses.accepted == sum(counts.total() for counts in counted.values()) > RUNS * EACH / TOP
    statistic = 0.0
    for first, counts in counted.items():
        for token, share in expected[first].items():
            mean = share * counts.total()
            statistic += (counts[token] - mean) ** 2 / mean
        assert set(counts) <= set(expected[first])
    assert statistic < CRITICAL
