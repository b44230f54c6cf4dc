"""Terms from steps: known ones are found again, and what is found is as sure as it says."""

from __future__ import annotations

import random

import numpy as np
import pytest

from octavo.errors import BenchError
from octavo.simulation.calibrate import Observed, fit, non_negative
from octavo.simulation.calibrated import CalibratedPace
from octavo.timing.step_time import StepLoad

_TRUTH = CalibratedPace(
    per_step_s=0.004,
    tokens=(0, 2, 4, 8, 16, 32, 64, 128, 256, 512),
    token_s=(0.0, 0.0, 0.001, 0.002, 0.008, 0.01, 0.03, 0.05, 0.11, 0.2),
    per_sample_s=2e-4,
    per_sequence_s=5e-5,
    per_kv_token_s=3e-7,
    per_pair_s=2e-8,
)


def loads(count: int, seed: int) -> list[StepLoad]:
    draw = random.Random(seed)
    found = [
        StepLoad().with_chunk(0, tokens, 1) for tokens in (1, 2, 3, 5, 8, 12, 16, 30, 64, 100, 256, 400, 512)
    ]
    while len(found) < count:
        load = StepLoad()
        for _ in range(draw.randint(0, 40)):
            load = load.with_chunk(draw.randrange(2000), 1, 1)
        if draw.random() < 0.6 or not load.tokens:
            load = load.with_chunk(
                draw.randrange(1500), draw.randint(1, 512 - load.tokens), draw.randint(0, 1)
            )
        found.append(load)
    return found


def test_terms_without_noise_are_found_exactly() -> None:
    pace, host, fitted = fit([Observed((load,), _TRUTH.seconds(load)) for load in loads(150, 1)])
    for load in loads(300, 2):
        assert pace.seconds(load) == pytest.approx(_TRUTH.seconds(load), rel=1e-6)
    for name in ("per_step_s", "per_sample_s", "per_sequence_s", "per_kv_token_s", "per_pair_s"):
        assert getattr(pace, name) == pytest.approx(getattr(_TRUTH, name), rel=1e-4)
    assert (host.per_request_s, host.per_prompt_token_s) == (0.0, 0.0)
    assert fitted.error_p95 < 1e-4 and fitted.kinds == 150


def test_terms_with_noise_are_found_within_their_bars() -> None:
    """95 % intervals hold the truth in nearly all of ten fits; and the error told is that of the noise."""
    held, errors = 0, []
    names = ("per_step_s", "per_sample_s", "per_kv_token_s", "per_pair_s")
    for seed in range(10):
        noise = random.Random(seed)
        seen = [
            Observed((one,), _TRUTH.seconds(one) * noise.gauss(1.0, 0.03)) for one in loads(250, 100 + seed)
        ]
        pace, _, fitted = fit(seen, seed=seed)
        errors.append(fitted.error_p50)
        held += sum(fitted.low[name] <= getattr(_TRUTH, name) <= fitted.high[name] for name in names)
        assert all(fitted.low[name] < fitted.high[name] for name in names)
        for load in loads(100, 500 + seed):
            assert pace.seconds(load) == pytest.approx(_TRUTH.seconds(load), rel=0.08)
    assert held >= 0.85 * 10 * len(names)
    assert 0.015 < float(np.median(errors)) < 0.03  # the median of |N(0, 0.03)| is 0.02


def test_the_way_to_the_engine_is_told_apart_from_its_steps() -> None:
    seen = [Observed((load,), _TRUTH.seconds(load)) for load in loads(120, 3)]
    for tokens in (16, 64, 200, 512, 1024):
        first = StepLoad().with_chunk(0, min(tokens, 512), int(tokens <= 512))
        steps = (first,) if tokens <= 512 else (first, StepLoad().with_chunk(512, tokens - 512, 1))
        seconds = sum(map(_TRUTH.seconds, steps)) + 0.003 + 4e-6 * tokens
        seen.append(Observed(steps, seconds, prompt_tokens=tokens))
    _, host, _ = fit(seen)
    assert host.per_request_s == pytest.approx(0.003, rel=1e-3)
    assert host.per_prompt_token_s == pytest.approx(4e-6, rel=1e-3)


def test_too_little_was_seen() -> None:
    with pytest.raises(BenchError, match="Only 3 kinds of steps were measured, and 12 are needed"):
        fit([Observed((load,), 0.01) for load in loads(13, 1)[:3]])


def test_non_negative_least_squares_meets_the_conditions_of_an_optimum() -> None:
    """Karush, Kuhn and Tucker: x ≥ 0, the slope is 0 where x > 0 and points outwards where x = 0."""
    chance = np.random.default_rng(1)
    for _ in range(200):
        matrix = chance.normal(size=(30, 8)) * np.logspace(-6, 2, 8)
        target = chance.normal(size=30)
        found = non_negative(matrix, target)
        slope = (matrix.T @ (target - matrix @ found)) / np.linalg.norm(matrix, axis=0)
        assert (found >= 0).all() and (slope <= 1e-7).all()
        assert np.abs(slope[found > 0]).max(initial=0.0) < 1e-7
