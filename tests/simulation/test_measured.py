"""A server that was measured, with knobs: what it takes, how far it may be off, and this machine's critical batch."""

from __future__ import annotations

import msgspec
import pytest

from octavo.errors import SettingsError
from octavo.simulation.calibrated import CalibratedPace
from octavo.simulation.measured import Measured
from octavo.timing.step_time import StepLoad
from tests.planning.test_here import calibration


def test_this_machine_s_critical_batch_is_from_what_was_measured() -> None:
    """A step of one token takes 8 ms and 1/512 of 200 ms; the largest steps' tokens 200/512 ms each."""
    one = Measured(calibration=calibration(1))
    alone_s, more_s = 0.008 + 0.2 / 512, 0.2 / 512
    assert one.critical_batch == pytest.approx(alone_s / more_s)
    assert one.critical_sum == (
        "B* = 8.39 ms of a step of one token ÷ 0.391 ms of another token in the largest steps = 21 tokens a step"
    )
    assert dict(one.facts())["critical batch"].startswith(one.critical_sum)


def test_where_more_tokens_take_no_longer_memory_binds() -> None:
    flat = msgspec.structs.replace(calibration(1), pace=CalibratedPace(per_step_s=0.01))
    one = Measured(calibration=flat)
    assert one.critical_batch is None and "memory bound all" in one.critical_sum


def test_memory_and_times_may_be_others_than_were_measured() -> None:
    load = StepLoad(40, 2, 100, 30, 2)
    known = Measured(calibration=calibration(1))
    other = Measured(calibration=calibration(1), kv_tokens=500, times=1.25)
    assert known.settings.limits.num_blocks == 128 and other.settings.limits.num_blocks == 31
    assert other.settings.limits.max_model_len == 31 * 16
    assert other.pace.seconds(load) == pytest.approx(1.25 * known.pace.seconds(load))
    assert other.host.per_request_s == pytest.approx(1.25 * known.host.per_request_s)


def test_what_a_server_refuses_is_refused() -> None:
    with pytest.raises(SettingsError, match="max_running 17"):
        _ = Measured(calibration=calibration(1), max_step_tokens=16, max_running=17).settings
    with pytest.raises(SettingsError, match="one block of 16"):
        _ = Measured(calibration=calibration(1), max_step_tokens=8, max_running=4).settings
