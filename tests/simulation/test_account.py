"""One account of several reports, by hand; and that a run's record has it."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.bench.memory import NAMES
from octavo.memory.accounting import MemoryUse, Report
from octavo.simulation.account import account
from tests.engine.test_recorder import THREE, watched


def report(**changes: Any) -> Report:
    fields: dict[str, Any] = {
        "policy": "stall-free", "allocator": "paged", "steps": 10, "busy_s": 1.0, "now": MemoryUse(),
        "utilization": 0.5, "internal_waste": 0.2, "external_waste": 0.0, "duplicate_waste": 0.0, "sharing_saved": 0.0,
        "running": 4.0, "most_running": 6, "idle_slots": 0.0, "step_tokens": 20.0, "preemptions": 1,
        "prefix_hit_rate": 0.5,
    }  # fmt: skip
    return Report(**{**fields, **changes})


def test_an_account_of_one_report_is_that_report() -> None:
    one = report(sharing_saved=0.25, external_waste=0.1, duplicate_waste=0.3)
    made = account([one], [100])
    assert set(made) == set(NAMES)
    assert made == pytest.approx({name: float(getattr(one, name)) for name in NAMES})


def test_shares_of_several_replicas_are_over_the_memory_of_all() -> None:
    one = report()
    other = report(
        busy_s=3.0, utilization=0.1, internal_waste=0.6, steps=30, step_tokens=40.0, preemptions=2, most_running=2,
        running=1.0, prefix_hit_rate=0.1, sharing_saved=0.5,
    )  # fmt: skip
    made = account([one, other], [300, 100])
    assert made["utilization"] == pytest.approx((1 * 0.5 + 3 * 0.1) / 4)
    # held: 0.5 and 0.3 of a memory's seconds; without a token: 0.1 and 0.18
    assert made["internal_waste"] == pytest.approx((0.1 + 0.18) / 0.8)
    # without sharing: 0.5 and 0.6; saved 0 and 0.3
    assert made["sharing_saved"] == pytest.approx(0.3 / 1.1)
    assert made["step_tokens"] == pytest.approx((10 * 20 + 30 * 40) / 40)
    assert made["prefix_hit_rate"] == pytest.approx((300 * 0.5 + 100 * 0.1) / 400)
    assert (made["preemptions"], made["most_running"], made["steps"]) == (3, 6, 40)


def test_replicas_that_did_nothing_have_an_account_of_zeros() -> None:
    idle = report(
        busy_s=0.0, steps=0, utilization=0.0, internal_waste=0.0, running=0.0, most_running=0, step_tokens=0.0,
        preemptions=0, prefix_hit_rate=0.0,
    )  # fmt: skip
    assert set(account([idle, idle], [0, 0]).values()) == {0.0}


def test_a_run_has_the_account_of_its_steps() -> None:
    """Weighed by their lengths: the hand-worked steps of prefill-first, in blocks held of 64."""
    steps, run = watched(THREE, policy="prefill-first")
    lengths = [one.end_us - one.begin_us for one in steps]
    held = [16 * one.blocks_used for one in steps]
    seen = sum(length * tokens for length, tokens in zip(lengths, held, strict=True))
    # The last step's length would come with the next inputs, and there are none.
    short, last = seen - lengths[-1] * held[-1], lengths[-1]
    assert run.memory["utilization"] == pytest.approx(short / (sum(lengths) - last) / (16 * 64))
    wasted = sum(length * one.internal_tokens for length, one in zip(lengths[:-1], steps[:-1], strict=True))
    assert run.memory["internal_waste"] == pytest.approx(wasted / short)
    assert run.memory["steps"] == 6
