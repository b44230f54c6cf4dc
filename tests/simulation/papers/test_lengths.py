"""Lengths fitted to a paper's mean, or median and percentile."""

from __future__ import annotations

from statistics import fmean, quantiles

import pytest

from octavo.simulation.papers.lengths import clamped_mean, with_mean, with_median
from octavo.workload.arrivals import Poisson
from octavo.workload.generate import requests_of
from octavo.workload.lengths import Fixed, Lognormal
from octavo.workload.spec import Workload


def drawn(length: Lognormal) -> list[int]:
    workload = Workload(arrivals=Poisson(rate=1.0), input=length, output=Fixed(tokens=1), requests=5_000)
    return [one.input_tokens or 0 for one in requests_of(workload)]


@pytest.mark.parametrize(
    ("mean", "sigma", "most"), [(161.31, 1.2, 1024), (58.45, 0.9, 1024), (300.0, 0.9, 400)]
)
def test_what_is_drawn_has_the_mean_that_was_asked_for(mean: float, sigma: float, most: int) -> None:
    length = with_mean(mean, sigma, most)
    tokens = drawn(length)
    assert fmean(tokens) == pytest.approx(mean, rel=0.05)
    assert max(tokens) <= most
    assert clamped_mean(length.parts[0].median, sigma, most) == pytest.approx(mean, rel=1e-3)


def test_what_is_drawn_has_the_median_and_the_percentile_that_were_asked_for() -> None:
    tokens = drawn(with_median(1730, 5696, 100_000))
    tenths = quantiles(tokens, n=10)
    assert tenths[4] == pytest.approx(1730, rel=0.05)
    assert tenths[8] == pytest.approx(5696, rel=0.08)


def test_without_a_bound_in_reach_the_mean_is_the_formula_s() -> None:
    """median e^(σ²/2): 100 × e^0.5 = 164.87."""
    assert clamped_mean(100.0, 1.0, 10_000_000) == pytest.approx(164.872, rel=1e-5)
    assert clamped_mean(1000.0, 0.01, 10) == pytest.approx(10.0)
