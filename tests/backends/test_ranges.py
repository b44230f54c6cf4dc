"""Whatever the edge lets through, a backend computes: a rule that it refuses would end the engine, for everybody."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from octavo.sampling.params import SamplingParams
from octavo.sampling.ranges import RANGES
from octavo.scheduling.inputs import Add
from octavo.scheduling.profiles import Targets
from octavo.scheduling.sequence import Request
from tests.backends.conftest import MakeBackend
from tests.backends.driver import Ask, run

PROMPT = (5, 6, 7)
NEW_TOKENS = 3


def extremes() -> list[dict[str, Any]]:
    """Of each parameter that a rule is made of, the least and the largest that is allowed, and the least above 0."""
    found: list[dict[str, Any]] = [{"logit_bias": {0: -100.0, 286: 100.0}}]
    for name, bounds in RANGES.items():
        if name in ("best_of", "beam_width", "length_penalty", "max_tokens", "prompt_logprobs", "n"):
            continue
        low = math.nextafter(bounds.low, bounds.high) if bounds.above else bounds.low
        values = {low, bounds.high, *(() if bounds.whole else (max(low, 5e-324), max(low, 1e-45)))}
        found += [{name: int(value) if bounds.whole else value} for value in sorted(values)]
    return found


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_every_extreme_is_computed(make: MakeBackend, tiny_model_path: Path, backend: str) -> None:
    made = make(backend, tiny_model_path)
    for given in extremes():
        params = SamplingParams(max_tokens=None, **{"seed": 1, "logprobs": 1, **given})
        request = Request(Add("r", PROMPT, params, 0.0), 0, frozenset({2}), 64, Targets())
        [told] = run(made, [Ask(PROMPT, NEW_TOKENS, request.rule(0))])
        assert len(told.tokens) == NEW_TOKENS and min(told.tokens) >= 0, given
