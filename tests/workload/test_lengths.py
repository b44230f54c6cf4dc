"""Lengths and delays against their theory, with fixed seeds."""

from __future__ import annotations

import math
import statistics
from collections import Counter

import msgspec
import pytest

from octavo.workload.draws import Draws
from octavo.workload.lengths import (
    Delay,
    Empirical,
    ExponentialDelay,
    Fixed,
    FixedDelay,
    Length,
    Lognormal,
    LognormalDelay,
    LognormalPart,
    Uniform,
    Zipf,
    draw_delay,
    draw_length,
)  # fmt: skip

N = 20_000


def _drawn(length: Length) -> list[int]:
    draws = Draws(11, "lengths")
    return [draw_length(length, draws) for _ in range(N)]


def test_fixed_and_uniform() -> None:
    assert set(_drawn(Fixed(tokens=9))) == {9}
    counts = Counter(_drawn(Uniform(min=5, max=14)))
    assert sorted(counts) == list(range(5, 15))
    assert (
        sum((count - N / 10) ** 2 / (N / 10) for count in counts.values()) < 27.9
    )  # chi², 9 degrees, p = 0.001


def test_lognormal_mixture_follows_its_distribution() -> None:
    parts = (LognormalPart(median=100, sigma=0.5, weight=3), LognormalPart(median=2000, sigma=0.3))
    values = _drawn(Lognormal(parts=parts))
    normal = statistics.NormalDist()

    def below(x: float) -> float:
        return sum(p.weight / 4 * normal.cdf(math.log(x / p.median) / p.sigma) for p in parts)

    for at in (50, 80, 100, 150, 300, 1500, 2000, 3000):
        found = sum(value <= at for value in values) / N
        assert abs(found - below(at + 0.5)) < 1.95 / math.sqrt(N)
    cut = _drawn(Lognormal(parts=parts, min=90, max=110))
    assert min(cut) == 90 and max(cut) == 110


def test_zipf_has_its_weights() -> None:
    counts = Counter(_drawn(Zipf(exponent=1.2, min=3, max=52)))
    total = sum(n**-1.2 for n in range(1, 51))
    chi2 = sum((counts[n + 2] - N * n**-1.2 / total) ** 2 / (N * n**-1.2 / total) for n in range(1, 51))
    assert chi2 < 85.4  # 49 degrees, p = 0.001


def test_empirical_draws_what_it_is_given() -> None:
    assert Counter(_drawn(Empirical(values=(4, 4, 8)))).keys() == {4, 8}
    counts = Counter(_drawn(Empirical(values=(1, 2, 3), weights=(1, 0, 3))))
    assert counts[2] == 0 and abs(counts[3] / N - 0.75) < 4 * math.sqrt(0.75 * 0.25 / N)


@pytest.mark.parametrize(
    ("delay", "mean", "deviation"),
    [
        (FixedDelay(seconds=2.5), 2.5, 0.0),
        (ExponentialDelay(mean_s=3.0), 3.0, 3.0),
        (LognormalDelay(median_s=2.0, sigma=0.5), 2 * math.exp(0.125), 2 * math.exp(0.125) * 0.5329),
    ],
)
def test_delays_have_their_mean(delay: Delay, mean: float, deviation: float) -> None:
    draws = Draws(2, "delays")
    values = [draw_delay(delay, draws) for _ in range(N)]
    assert abs(statistics.fmean(values) - mean) <= 4 * deviation / math.sqrt(N) + 1e-12


@pytest.mark.parametrize(
    "bad",
    [
        {"kind": "fixed", "tokens": 0},
        {"kind": "uniform", "min": 5, "max": 4},
        {"kind": "lognormal", "parts": []},
        {"kind": "zipf", "exponent": 1, "max": 5_000_000},
        {"kind": "empirical", "values": [1, 2], "weights": [1]},
        {"kind": "empirical", "values": [1, 2], "weights": [0, 0]},
    ],
)
def test_what_makes_no_sense_is_refused(bad: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(bad, Length)
