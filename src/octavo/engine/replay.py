"""Run a step log through the scheduler again and compare plan by plan. Knows no backend and no clock."""

from __future__ import annotations

from pathlib import Path

import msgspec

from octavo.backends.base import Plan
from octavo.engine.steplog import Committed, Head, Scheduled, read_log
from octavo.errors import ModelError
from octavo.scheduling.policies import POLICIES
from octavo.scheduling.scheduler import Scheduler

__all__ = ["ReplayReport", "replay"]


class ReplayReport(msgspec.Struct, frozen=True):
    """How a replay went."""

    steps: int
    """Plans with rows that were compared."""
    tokens: int
    """Tokens they computed."""
    preemptions: int
    difference: str | None
    """None when every plan was the same; else the first that was not."""


def replay(path: str | Path) -> ReplayReport:
    """Feed the log's inputs and samples to a fresh scheduler. Raises ModelError for a file that is not a log."""
    scheduler: Scheduler | None = None
    flying: dict[int, Plan] = {}
    steps = tokens = 0
    difference = None
    for event in read_log(path):
        if isinstance(event, Head):
            policy = POLICIES.get(event.policy)
            if policy is None:
                raise ModelError(
                    f"{path} was written under the policy {event.policy!r}, which is unknown here."
                )
            scheduler = Scheduler(event.config, event.vocabulary(), policy)
            continue
        assert scheduler is not None
        if isinstance(event, Scheduled):
            plan = scheduler.schedule(event.inputs)
            if plan != event.plan:
                difference = f"step {event.plan.step}: the log has {event.plan}, the replay gives {plan}"
                break
            if plan.rows:
                flying[plan.step] = plan
                steps += 1
                tokens += plan.tokens
        elif isinstance(event, Committed):
            plan_done = flying.pop(event.step, None)
            if plan_done is None:
                raise ModelError(f"{path} commits step {event.step}, which it never scheduled.")
            scheduler.commit(plan_done, event.samples)
            scheduler.take_outputs()
    if scheduler is None:
        raise ModelError(f"{path} is empty.")
    return ReplayReport(steps, tokens, scheduler.counters.preemptions, difference)
