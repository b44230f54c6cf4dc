"""Intervals against printed tables, closed forms, and how often they hold what they promise."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from octavo.bench.intervals import (
    bootstrap,
    holm,
    mean_interval,
    paired,
    quantile_of,
    share_interval,
    t_quantile,
    t_tail,
    welch,
)

TABLE = {  # as printed in any table of Student's t: degrees -> t for 0.90, 0.975, 0.995, 0.9995
    1: (3.078, 12.706, 63.657, 636.619),
    2: (1.886, 4.303, 9.925, 31.599),
    3: (1.638, 3.182, 5.841, 12.924),
    5: (1.476, 2.571, 4.032, 6.869),
    10: (1.372, 2.228, 3.169, 4.587),
    30: (1.310, 2.042, 2.750, 3.646),
    120: (1.289, 1.980, 2.617, 3.373),
}


@pytest.mark.parametrize("degrees", TABLE)
def test_student_s_quantiles_are_the_table_s(degrees: int) -> None:
    found = [t_quantile(p, degrees) for p in (0.90, 0.975, 0.995, 0.9995)]
    assert found == pytest.approx(TABLE[degrees], abs=5.1e-4)


@pytest.mark.parametrize("p", [0.001, 0.2, 0.5, 0.77, 0.999999])
def test_quantiles_of_one_and_two_degrees_are_their_closed_forms(p: float) -> None:
    assert t_quantile(p, 1) == pytest.approx(math.tan(math.pi * (p - 0.5)), rel=1e-8, abs=1e-12)
    assert t_quantile(p, 2) == pytest.approx((2 * p - 1) / math.sqrt(2 * p * (1 - p)), rel=1e-8, abs=1e-12)


@pytest.mark.parametrize("degrees", [0.7, 1.0, 2.5, 4.0, 33.3, 1e4, 1e6])
def test_the_tail_is_the_integral_of_the_density(degrees: float) -> None:
    t = 1.7
    front = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)
    x = np.linspace(0.0, t, 20_001)
    density = front * (1 + x * x / degrees) ** (-(degrees + 1) / 2)
    assert t_tail(t, degrees) == pytest.approx(0.5 - np.trapezoid(density, x), abs=1e-8)
    assert t_tail(-t, degrees) == pytest.approx(1.0 - t_tail(t, degrees), abs=1e-12)


def test_with_many_degrees_it_is_the_normal_distribution() -> None:
    assert t_quantile(0.975, 1e9) == pytest.approx(1.959964, abs=1e-5)
    assert t_tail(math.inf, 3) == 0.0 and t_tail(-math.inf, 3) == 1.0


@pytest.mark.parametrize(("p", "degrees"), [(0.0, 3), (1.0, 3), (0.5, 0), (math.nan, 3)])
def test_what_has_no_quantile_is_refused(p: float, degrees: float) -> None:
    with pytest.raises(ValueError):
        t_quantile(p, degrees)


@pytest.mark.parametrize("count", [2, 3, 8])
def test_a_mean_s_interval_has_the_truth_as_often_as_it_says(count: int) -> None:
    draw = random.Random(count)
    held = sum(5.0 in mean_interval([draw.gauss(5.0, 2.0) for _ in range(count)]) for _ in range(4000))
    assert held / 4000 == pytest.approx(0.95, abs=0.012)  # 3.5 deviations of 4,000 trials


def test_one_value_says_nothing_of_its_spread() -> None:
    one = mean_interval([3.0])
    assert (one.estimate, one.low, one.high) == (3.0, -math.inf, math.inf)
    with pytest.raises(ValueError):
        mean_interval([])


def test_welch_s_example_with_unequal_spreads() -> None:
    # Means 20.5 and 24.0; variances 1/3 and 26/3 of 4 and 4 values: t = 3.5 / 1.5 by hand.
    a, b = [20.0, 20.5, 20.5, 21.0], [20.0, 24.0, 24.0, 28.0]
    found = welch(a, b)
    variance_a, variance_b = (0.25 + 0.25) / 3, (16 + 16) / 3
    error = math.sqrt(variance_a / 4 + variance_b / 4)
    assert found.interval.estimate == pytest.approx(3.5)
    assert found.degrees == pytest.approx(error**4 / ((variance_a / 4) ** 2 / 3 + (variance_b / 4) ** 2 / 3))
    assert found.p_above == pytest.approx(t_tail(3.5 / error, found.degrees))
    assert found.p_above + found.p_below == pytest.approx(1.0)
    assert found.interval.high - 3.5 == pytest.approx(t_quantile(0.975, found.degrees) * error)


@pytest.mark.slow
def test_two_samples_of_the_same_differ_as_rarely_as_promised() -> None:
    draw = random.Random(5)

    def sample(spread: float) -> list[float]:
        return [draw.gauss(1.0, spread) for _ in range(4)]

    alarms = sum(welch(sample(0.1), sample(0.3)).p_above < 0.05 for _ in range(4000))
    assert 0.03 < alarms / 4000 < 0.065


def test_values_without_spread_differ_surely_or_not_at_all() -> None:
    same = welch([0.1, 0.1, 0.1], [0.1, 0.1])
    assert same.interval.estimate == 0.0 and same.p_above == 1.0 and same.p_below == 1.0
    more = welch([0.0, 0.0], [1.0, 1.0])
    assert (more.p_above, more.p_below, more.interval.low) == (0.0, 1.0, 1.0)


def test_pairs_take_out_what_both_share() -> None:
    shared = [10.0, 20.0, 30.0, 40.0, 50.0]
    b = [value + 1.0 + wobble for value, wobble in zip(shared, (0.1, -0.1, 0.0, 0.1, -0.1), strict=True)]
    assert paired(shared, b).p_above < 1e-4
    assert welch(shared, b).p_above > 0.4
    with pytest.raises(ValueError):
        paired([1.0, 2.0], [1.0])
    with pytest.raises(ValueError):
        welch([1.0], [1.0, 2.0])


def test_wilson_s_interval_is_the_published_one() -> None:
    # Newcombe (1998), table I, method 3, and its edges.
    for hits, of, low, high in [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611)]:
        found = share_interval(hits, of)
        assert [found.low, found.high] == pytest.approx([low, high], abs=5e-5)
    assert share_interval(20, 20).high == 1.0
    for hits, of in [(3, 2), (-1, 2), (0, 0)]:
        with pytest.raises(ValueError):
            share_interval(hits, of)


def test_a_bootstrap_of_a_mean_is_as_wide_as_theory_says() -> None:
    draw = random.Random(3)
    blocks = [[draw.gauss(0.0, 1.0)] for _ in range(400)]
    found = bootstrap(blocks, lambda sample: float(sample.mean()), draws=2000, seed=1)
    width = quantile_of(found, 0.975) - quantile_of(found, 0.025)
    assert width == pytest.approx(2 * 1.96 / 20, rel=0.1)


def test_blocks_whose_values_are_alike_count_as_one_value() -> None:
    draw = random.Random(4)
    ones = [[draw.gauss(0.0, 1.0)] for _ in range(100)]
    tens = [one * 10 for one in ones]

    def width(blocks: list[list[float]]) -> float:
        found = bootstrap(blocks, lambda sample: float(sample.mean()), draws=500)
        return quantile_of(found, 0.975) - quantile_of(found, 0.025)

    assert width(tens) == pytest.approx(width(ones))
    assert width([[value] for ten in tens for value in ten]) < 0.5 * width(ones)


def test_a_bootstrap_is_the_same_for_the_same_seed_and_pinned() -> None:
    blocks = [[float(n)] for n in range(10)]

    def first(sample: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
        return float(sample[0])

    one = bootstrap(blocks, first, draws=5, seed=9)
    assert one == bootstrap(blocks, first, draws=5, seed=9)
    assert bootstrap(blocks, first, draws=50, seed=9) != bootstrap(blocks, first, draws=50, seed=10)
    raw = np.random.PCG64(9).random_raw(50).astype(object)
    assert one == sorted(float((int(value) >> 32) * 10 >> 32) for value in raw[::10])


def test_samples_without_a_value_are_left_out() -> None:
    found = bootstrap([[], [], [1.0]], lambda sample: float(sample.sum()), draws=200)
    assert 0 < len(found) < 200 and set(found) <= {1.0, 2.0, 3.0}
    with pytest.raises(ValueError):
        bootstrap([], lambda sample: 0.0)
    with pytest.raises(ValueError):
        quantile_of([], 0.5)


def test_holm_s_correction_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_quantiles_between_infinite_values_are_no_nonsense() -> None:
    assert quantile_of([1.0, math.inf, math.inf], 0.9) == math.inf
    assert quantile_of([1.0, 2.0], 0.5) == 1.5
