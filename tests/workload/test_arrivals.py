"""Arrivals against their theory, with fixed seeds."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest

from octavo.workload.arrivals import Arrivals, Constant, Gamma, Level, Poisson, Ramp, Step, times_s
from octavo.workload.draws import Draws


def _times(arrivals: Arrivals, count: int) -> list[float]:
    return list(itertools.islice(times_s(arrivals, Draws(4, "arrivals")), count))


def test_constant_is_even() -> None:
    assert _times(Constant(rate=4.0), 5) == [0.0, 0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize(
    ("arrivals", "cv"),
    [(Poisson(rate=5.0), 1.0), (Gamma(rate=5.0, cv=0.5), 0.5), (Gamma(rate=5.0, cv=3.0), 3.0)],
)
def test_gaps_have_their_mean_and_cv(arrivals: Arrivals, cv: float) -> None:
    n = 20_000
    gaps = [b - a for a, b in itertools.pairwise(_times(arrivals, n + 1))]
    mean = statistics.fmean(gaps)
    assert abs(mean * 5 - 1) < 4 * cv / math.sqrt(n)
    assert statistics.pstdev(gaps) / mean == pytest.approx(cv, rel=0.1)


def test_poisson_gaps_are_exponential() -> None:
    n = 10_000
    gaps = sorted(b - a for a, b in itertools.pairwise(_times(Poisson(rate=2.0), n + 1)))
    distance = max(abs((i + 0.5) / n - (1 - math.exp(-2 * gap))) for i, gap in enumerate(gaps))
    assert distance < 1.95 / math.sqrt(n)


@pytest.mark.parametrize(("low", "high"), [(0.0, 10.0), (2.0, 8.0), (8.0, 2.0)])
def test_a_ramp_has_its_rate_at_every_time(low: float, high: float) -> None:
    ramp = Ramp(from_rate=low, to_rate=high, ramp_s=100.0, cv=0)
    times = _times(ramp, 1500)
    for at in (25.0, 50.0, 100.0, 150.0):
        during = min(at, 100.0)
        due = low * during + (high - low) * during * during / 200 + high * (at - during)
        assert abs(sum(time < at - 1e-9 for time in times) - due) <= 1
    noisy = _times(Ramp(from_rate=low, to_rate=high, ramp_s=100.0), 800)
    due = (low + high) / 2 * 100
    assert abs(sum(time < 100 for time in noisy) - due) < 4 * math.sqrt(due)


def test_steps_follow_each_other_and_begin_again() -> None:
    levels = (Level(rate=10, for_s=5), Level(rate=0, for_s=3), Level(rate=2, for_s=5))
    times = _times(Step(levels=levels, cv=0), 130)
    counts = [
        sum(a <= time + 1e-9 < b for time in times) for a, b in ((0, 5), (5, 8), (8, 13), (13, 18), (18, 21))
    ]
    assert counts == [50, 0, 10, 50, 0]
    assert times == sorted(times)
