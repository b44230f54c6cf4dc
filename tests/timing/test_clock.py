"""Clocks: the machine's, and one that tests move."""

from __future__ import annotations

import time

import pytest

from octavo.timing.clock import ManualClock, WallClock


def test_the_wall_clock_starts_at_unix_time_and_never_jumps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    monkeypatch.setattr(time, "monotonic", lambda: 7.0)
    clock = WallClock()
    assert clock.now_s() == 1000.0
    monkeypatch.setattr(time, "time", lambda: 0.0)  # someone sets the machine's clock
    monkeypatch.setattr(time, "monotonic", lambda: 8.5)
    assert clock.now_s() == 1001.5


def test_a_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(5.0)
    assert clock.now_s() == clock.now_s() == 5.0
    clock.advance(0.25)
    assert clock.now_s() == 5.25


def test_time_does_not_go_back() -> None:
    with pytest.raises(ValueError, match=r"1\.0 s"):
        ManualClock().advance(-1.0)
