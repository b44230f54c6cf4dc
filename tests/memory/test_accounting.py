"""Waste by kind, through a real scheduler on a clock that the test moves."""

from __future__ import annotations

import pytest

from octavo.config import AllocatorName, PolicyName
from octavo.engine.engine import Engine
from octavo.memory.accounting import Report
from tests.fakes import limits, make_engine, request, timed


def run_timed(engine: Engine) -> Report:
    """Each step takes a second."""
    timed(engine, lambda plan: 1.0)
    while not engine.idle:
        engine.step()
    engine.add(request("last", "x", max_tokens=1))  # the step before enters with the next one
    engine.step()
    return engine.report()


@pytest.mark.parametrize(
    ("allocator", "held"),
    [("paged", 47), ("reserved-oracle", 60), ("reserved-pow2", 80), ("reserved-max", 320)],
)
def test_internal_waste_is_what_is_held_without_a_token(allocator: AllocatorName, held: int) -> None:
    engine = make_engine(limits(max_model_len=256), script=lambda h, r: 65, allocator=allocator)
    engine.add(request("r", "x" * 20, max_tokens=20))
    report = run_timed(engine)
    # Twenty steps, in which 20, 21 … 39 tokens are stored; paged, in two blocks up to 32.
    assert report.internal_waste == pytest.approx(1 - sum(range(20, 40)) / (16 * held))
    assert report.utilization == pytest.approx(held / 20 / 64)
    assert report.busy_s == 20 and report.running == 1 and report.most_running == 1


def test_external_waste_is_what_is_free_but_in_pieces() -> None:
    engine = make_engine(
        limits(num_blocks=8, max_model_len=128), script=lambda h, r: 65, allocator="reserved-oracle"
    )
    for name, size, length in (("a", 30, 2), ("b", 30, 18), ("c", 30, 2), ("d", 10, 6)):
        engine.add(request(name, name * size, max_tokens=length))
    engine.add(request("e", "e" * 60, max_tokens=4))
    report = run_timed(engine)
    assert report.external_waste > 0
    assert run_timed(make_engine(limits(num_blocks=8, max_model_len=128))).external_waste == 0


@pytest.mark.parametrize(("allocator", "duplicate"), [("paged", 0.0), ("reserved-oracle", 0.5)])
def test_what_is_stored_twice_is_duplicate(allocator: AllocatorName, duplicate: float) -> None:
    engine = make_engine(limits(max_step_tokens=256), script=lambda h, r: 65 + r.seed, allocator=allocator)
    engine.add(request("r", "x" * 64, n=2, max_tokens=2))
    report = run_timed(engine)
    assert report.duplicate_waste == pytest.approx(duplicate)
    assert (report.sharing_saved > 0.2) == (allocator == "paged")


@pytest.mark.parametrize("policy", ["static", "stall-free"])
def test_slots_that_an_ended_sequence_keeps_are_counted(policy: PolicyName) -> None:
    engine = make_engine(script=lambda h, r: 65, policy=policy)
    engine.add(request("short", "x" * 20, max_tokens=2))
    engine.add(request("long", "y" * 20, max_tokens=10))
    report = run_timed(engine)
    assert report.idle_slots == pytest.approx(0.8 if policy == "static" else 0.0)
    assert (report.internal_waste > 0.4) == (policy == "static")
