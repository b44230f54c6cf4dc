"""Gaps in parts against plain lists, also gaps that are too long for four bytes."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.bench.gaps import Gaps

LONG = 3_000_000_000
"""Microseconds: 50 minutes, more than 31 bits."""


def gaps() -> Gaps:
    """Of five requests; the second has none, the fourth only zeros."""
    return Gaps(
        [
            (np.array([30, 10, 20], dtype=np.int32), np.array([2, 0, 1])),
            (np.array([LONG], dtype=np.int64), np.array([0, 1])),
        ],
        np.array([1, 0, 0, 2, 0]),
    )


def test_each_request_has_its_own() -> None:
    assert [(us.tolist(), zeros) for us, zeros in map(gaps().of, range(5))] == [
        ([30, 10], 1), ([], 0), ([20], 0), ([], 2), ([LONG], 0),
    ]  # fmt: skip
    assert [one.tolist() for one in gaps().each()] == [
        [0.0, 3e-5, 1e-5], [], [2e-5], [0.0, 0.0], [LONG / 1e6],
    ]  # fmt: skip
    middle = gaps().quantiles(0.5)
    assert np.isnan(middle[1]) and np.delete(middle, 1).tolist() == [1e-5, 2e-5, 0.0, LONG / 1e6]


def test_all_of_some_requests_and_groups_of_them() -> None:
    some = gaps().distribution(np.array([True, True, False, True, True]))
    assert (some.count, some.percentile(0), some.percentile(100)) == (6, 0.0, LONG / 1e6)
    assert some.mean() == pytest.approx((LONG + 40) / 6e6, rel=1e-15)
    one, other, nobody = gaps().by_group(np.array([0, 1, -1, 1, 0]), 3)
    assert (one.count, other.count, nobody.count) == (4, 2, 0)
    assert (other.summary(), nobody.summary()) != (None, None) and nobody.percentile(50) is None


def test_what_was_asked_last_is_not_taken_for_something_else() -> None:
    found, group = gaps(), np.array([0, 0, 0, 0, 0])
    assert [one.count for one in found.by_group(group, 1)] == [7]
    assert [one.count for one in found.by_group(group, 2)] == [7, 0]
    assert found.distribution(np.array([False, False, True, False, False])).count == 1
    assert found.distribution(np.array([True] * 5)).count == 7


def test_no_request_has_no_gap() -> None:
    nothing = Gaps([], np.zeros(0, dtype=np.int64))
    assert (nothing.each(), nothing.quantiles(0.5).tolist()) == ([], [])
    assert nothing.distribution(np.zeros(0, dtype=bool)).count == 0
