"""A step that does not end is named, and a request that can never run ends."""

from __future__ import annotations

import logging
import time

import pytest

from octavo.backends.base import Handle, Plan
from octavo.engine import engine as engine_module
from octavo.engine.watchdog import Watchdog
from octavo.timing.clock import ManualClock, WallClock
from tests.fakes import make_engine, request, run


class Step:
    """What runs, in words."""

    def describe(self) -> str:
        return "step 7, request r1"


def test_a_long_step_is_named_once_for_each_doubling(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    step = Step()
    watchdog = Watchdog(clock, step.describe, patience_s=10.0, look_every_s=0.005)
    watchdog.begin()
    for _ in range(30):
        clock.advance(1.0)
        time.sleep(0.02)
    watchdog.done()
    watchdog.close()
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert 1 <= len(messages) <= 2 and all("step 7, request r1" in message for message in messages)


def test_a_step_that_was_expected_to_be_long_gets_its_time(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    step = Step()
    watchdog = Watchdog(clock, step.describe, patience_s=1.0, look_every_s=0.005)
    watchdog.begin(expected_s=2.0)
    clock.advance(39.0)
    time.sleep(0.05)
    watchdog.close()
    assert not caplog.records


def test_a_watch_ends_with_what_it_watches() -> None:
    step = Step()
    watchdog = Watchdog(ManualClock(), step.describe, look_every_s=0.005)
    watchdog.begin()
    del step
    thread = watchdog._thread
    assert thread is not None
    thread.join(5)
    assert not thread.is_alive()


def test_the_engine_describes_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    told: list[str] = []
    launch = engine.backend.launch

    def describe_and_launch(plan: Plan) -> Handle:
        told.append(engine._describe())
        return launch(plan)

    monkeypatch.setattr(engine.backend, "launch", describe_and_launch)
    engine.add(request("named", "abc", max_tokens=5))
    run(engine)
    assert "named" in told[0] and "3 tokens" in told[0]


def test_a_request_that_can_never_run_ends_with_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "EMPTY_STEPS", 5)
    engine = make_engine()
    # A fault of the scheduler's:
    monkeypatch.setattr(engine._scheduler.places, "lacking_slots", lambda *args: 1)
    outputs = run(engine, request("stuck", "abc", n=2), steps=20)
    assert {item.finish_reason for items in outputs.values() for item in items} == {"error"}
    assert "'stuck'" in (outputs["stuck", 0][0].error or "") and "64 blocks" in (
        outputs["stuck", 0][0].error or ""
    )


def test_requests_that_are_refused_one_after_another_are_no_standstill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_module, "EMPTY_STEPS", 5)
    engine = make_engine()
    for number in range(12):
        engine.add(request(f"r{number}", [300], max_tokens=2))  # no token of the vocabulary
        [item] = engine.step().items
        assert item.finish_reason == "error" and "outside the vocabulary" in (item.error or "")


def test_a_wall_clock_engine_watches_and_ends_its_watch() -> None:
    engine = make_engine()
    engine.clock = WallClock()
    watched = engine_module.Engine(engine._scheduler, engine.backend, engine.info, clock=engine.clock)
    watched.add(request("r", "abc", max_tokens=2))
    while not watched.idle:
        watched.step()
    assert watched._watchdog is not None and watched._watchdog._thread is not None
    thread = watched._watchdog._thread
    watched.close()
    assert not thread.is_alive()
