"""Whether values have moved."""

from __future__ import annotations

import random

import pytest

from octavo.cli.route_check import drift_found
from octavo.routing.drift import Drift, bound, distance, psi


def test_on_the_labelled_windows_no_alarm_is_false_and_most_moves_are_found() -> None:
    found = drift_found()
    assert found.false == 0
    assert found.recall >= 0.9


def test_false_alarms_stay_below_the_level() -> None:
    """Values with many ties, too: the bound holds for every distribution."""
    source, alarms = random.Random(5), 0
    drift = Drift([source.randrange(4) for _ in range(400)], window=100, level=0.05)
    for _ in range(20_000):
        reading = drift.add(source.randrange(4))
        alarms += reading is not None and reading.alarm
    assert alarms <= 0.05 * 200


def test_distance_and_psi_are_what_a_naive_count_says() -> None:
    first, second = [0.0, 1.0, 1.0, 2.0], [1.0, 2.0, 2.0, 3.0]
    assert distance(first, second) == pytest.approx(0.5)
    assert distance(first, first) == 0
    assert psi(first * 10, first * 10) == pytest.approx(0)
    assert bound(1000, 500) == pytest.approx(0.0644 + 0.0911, abs=1e-3)


def test_without_a_reference_the_first_window_is_it() -> None:
    drift = Drift(window=100)
    assert all(drift.add(float(value)) is None for value in range(100))
    readings = [drift.add(float(value)) for value in range(1000, 1100)]
    assert readings[-1] is not None and readings[-1].alarm and readings[-1].distance == 1
    with pytest.raises(ValueError, match="at least 100"):
        Drift(window=99)
