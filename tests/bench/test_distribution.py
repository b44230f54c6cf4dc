"""Percentiles: one definition, the same for weighted values as for the list they stand for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bench.definitions import STATS
from octavo.bench.distribution import Distribution, Summary

_PAIRS = st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 9)), min_size=1, max_size=30)


@given(_PAIRS, st.floats(0, 100))
def test_a_weighted_percentile_is_numpy_s_of_the_list_that_the_weights_stand_for(
    pairs: list[tuple[int, int]], p: float
) -> None:
    values, weights = np.array([pair[0] for pair in pairs]), np.array([pair[1] for pair in pairs])
    found = Distribution(values, weights, scale=1e6)
    written_out = np.repeat(values, weights) / 1e6
    assert found.count == len(written_out)
    if found.count:
        assert found.percentile(p) == np.percentile(written_out, p)
        assert found.mean() == pytest.approx(written_out.mean(), abs=1e-12)
        assert Distribution(written_out).percentile(p) == np.percentile(written_out, p)
    else:
        assert found.percentile(p) is None
        assert found.summary() is None


@given(_PAIRS)
def test_a_summary_has_numpy_s_figures(pairs: list[tuple[int, int]]) -> None:
    values, weights = np.array([pair[0] for pair in pairs]), np.array([pair[1] + 1 for pair in pairs])
    summary = Distribution(values, weights, scale=1e6).summary()
    written_out = np.repeat(values, weights) / 1e6
    assert summary is not None
    assert summary.count == len(written_out)
    assert (summary.min, summary.max) == (written_out.min(), written_out.max())
    assert summary.mean == pytest.approx(written_out.mean())
    assert summary.std == pytest.approx(written_out.std(), abs=1e-12)
    for p, value in ((50, summary.p50), (90, summary.p90), (99, summary.p99), (99.9, summary.p99_9)):
        assert value == np.percentile(written_out, p)


def test_four_values_by_hand() -> None:
    # Places 0 to 3: p50 is at 1.5, p75 at 2.25, p90 at 2.7.
    found = Distribution(np.array([40, 10, 30, 20])).summary()
    assert found is not None
    assert (found.p50, found.p75, found.mean) == (25.0, 32.5, 25.0)
    assert found.p90 == pytest.approx(37.0)
    assert found.std == pytest.approx(125**0.5)


def test_gaps_and_the_zeros_between_tokens_of_one_event() -> None:
    # 0 0 0 0.1 0.3
    found = Distribution.of_gaps(np.array([300_000, 100_000]), 3)
    assert found.count == 5
    assert found.percentile(50) == 0.0
    assert found.percentile(75) == 0.1
    assert found.mean() == pytest.approx(0.08)
    assert found.share_below(0.0) == 0.6
    assert found.share_below(0.1) == 0.8
    assert found.share_below(-1.0) == 0.0
    assert Distribution.of_gaps(np.array([7]), 0).count == 1


def test_nothing_and_what_is_none_is_left_out() -> None:
    nothing = Distribution(np.array([np.nan]))
    assert (nothing.count, nothing.percentile(50), nothing.mean(), nothing.summary()) == (0, None, None, None)
    assert nothing.share_below(1.0) is None
    assert nothing.curve() == []
    assert Distribution(np.array([np.nan, 2.0])).mean() == 2.0


def test_a_curve_rises_from_the_least_to_the_most() -> None:
    curve = Distribution(np.array([5, 1, 3])).curve(points=5)
    assert curve == [(1.0, 0.0), (2.0, 0.25), (3.0, 0.5), (4.0, 0.75), (5.0, 1.0)]


def test_the_statistics_that_are_named_are_those_that_a_summary_has() -> None:
    assert Summary.__struct_fields__ == ("count", *STATS)


@pytest.mark.parametrize(("values", "weights"), [([1, 2], [1]), ([1], [-1])])
def test_weights_that_fit_no_values(values: list[int], weights: list[int]) -> None:
    with pytest.raises(ValueError, match="one weight"):
        Distribution(np.array(values), np.array(weights))


@pytest.mark.parametrize("p", [-0.1, 100.1])
def test_a_percentile_outside_0_to_100(p: float) -> None:
    with pytest.raises(ValueError, match="0 to 100"):
        Distribution(np.array([1])).percentile(p)
