"""What serves is what is simulated: a live run of the native engine, and the same arrivals and step times on a virtual
clock, make the same plans: who is admitted, hit, preempted, how much of whom each step computes, in which blocks."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from octavo.backends.base import Plan
from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.messages import Add
from octavo.engine.steplog import Head, Scheduled, read_log
from octavo.sampling.params import SamplingParams
from octavo.scheduling.inputs import Service
from octavo.simulation.replica import Replica
from octavo.timing.clock import ManualClock
from octavo.timing.step_time import StepLoad


def asked(seed: int, count: int, prefix: tuple[int, ...]) -> list[tuple[float, Add]]:
    """Requests with their times: some share a beginning, some have two answers, some tenants and priorities."""
    draw = random.Random(seed)
    requests, at_s = [], 0.0
    for number in range(count):
        own = tuple(draw.randrange(300, 40_000) for _ in range(draw.randint(1, 90)))
        params = SamplingParams(
            n=draw.choice([1, 1, 1, 2]), max_tokens=draw.randint(1, 40), temperature=0.0, seed=number, ignore_eos=True
        )  # fmt: skip
        service = Service(priority=draw.choice([0, 0, 1]), tenant=draw.choice(["", "a", "b"]))
        prompt = (*prefix, *own) if number % 3 else own
        requests.append((at_s, Add(f"r{number}", prompt, params, 0.0, service=service)))
        at_s += draw.choice([0.0, 0.004, 0.02, 0.15])
    return requests


def live(log: Path, model_dir: Path, requests: list[tuple[float, Add]], **changes: Any) -> list[Add]:
    """Serves them in real time and writes the log; gives back the requests with the times at which they came."""
    config = {
        "model_dir": str(model_dir), "num_blocks": 40, "max_model_len": 400, "max_step_tokens": 64, "max_running": 6,
        "speculation": "off", "step_log": str(log), **changes,
    }  # fmt: skip
    engine = build_engine(msgspec.convert(config, EngineConfig))
    came = []
    try:
        began_s = engine.clock.now_s()
        waiting = list(requests)
        while waiting or not engine.idle:
            now_s = engine.clock.now_s()
            while waiting and began_s + waiting[0][0] <= now_s:
                add = msgspec.structs.replace(waiting.pop(0)[1], arrival_s=engine.clock.now_s())
                came.append(add)
                engine.add(add)
            if engine.idle:
                time.sleep(0.001)
            else:
                engine.step()
    finally:
        engine.close()
    return came


class Recorded:
    """Each step takes what it took."""

    def __init__(self, seconds: Iterator[float]) -> None:
        self._seconds = seconds

    def seconds(self, load: StepLoad) -> float:
        return next(self._seconds)


def without_tokens(plan: Plan) -> tuple[Any, ...]:
    """All of a plan but which tokens they are: in a simulation all are the same."""
    return (
        plan.step,
        [(one.slot, len(one.history), one.tables, one.rule.prompt_tokens) for one in plan.opens],
        plan.copies,
        [(row.slot, row.start, row.count, len(row.tokens), row.tables_at, row.blocks) for row in plan.rows],
        plan.samples,
    )


def simulated(head: Head, events: list[Scheduled], came: list[Add]) -> tuple[list[Plan], int]:
    """The plans, and how often somebody was preempted."""
    starts = [event.inputs.now_s for event in events]
    clock = ManualClock(starts[0])
    durations = (later - start for start, later in zip(starts, [*starts[1:], starts[-1] + 1.0], strict=True))
    replica = Replica(head.config, Recorded(durations), clock, fast=False)
    plans: list[Plan] = []
    launch = replica.engine.backend.launch

    def noted(plan: Plan) -> object:
        plans.append(plan)
        return launch(plan)

    replica.engine.backend.launch = noted  # type: ignore[method-assign]
    waiting = list(came)
    while waiting or not replica.idle:
        while waiting and waiting[0].arrival_s <= clock.now_s():
            replica.add(waiting.pop(0))
        if replica.idle:
            # The live engine began its next step a moment after the message was there.
            clock.advance_to(min(start for start in starts if start >= waiting[0].arrival_s))
        else:
            replica.advance()
    replica.engine.check()
    return plans, replica.stats.preemptions


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "budget"), [("stall-free", 64), ("prefill-first", 400), ("continuous", 400), ("static", 400)]
)
def test_a_live_run_and_its_simulation_make_the_same_plans(
    tmp_path: Path, model_dir: Path, policy: str, budget: int
) -> None:
    draw = random.Random(policy)
    prefix = tuple(draw.randrange(300, 40_000) for _ in range(70))
    log = tmp_path / "steps.jsonl"
    came = live(log, model_dir, asked(len(policy), 24, prefix), policy=policy, max_step_tokens=budget)
    head, *others = read_log(log)
    assert isinstance(head, Head)
    events = [event for event in others if isinstance(event, Scheduled) and event.plan.rows]
    plans, preemptions = simulated(head, events, came)
    assert [without_tokens(plan) for plan in plans] == [without_tokens(event.plan) for event in events]
    assert len(plans) > 40
    if policy == "stall-free":
        assert preemptions > 0 and any(len(event.plan.rows) > 3 for event in events)
