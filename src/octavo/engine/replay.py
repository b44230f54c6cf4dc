"""Run a step log through the scheduler again and compare plan by plan. Knows no backend and no clock."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from octavo.backends.base import Plan
from octavo.engine.steplog import Committed, Cut, Head, Scheduled, read_log
from octavo.errors import ModelError
from octavo.scheduling.scheduler import Scheduler

__all__ = ["RunReport", "replay"]

_MOST = {
    "num_blocks": 1 << 22,
    "block_size": 1 << 16,
    "max_slots": 1 << 16,
    "max_step_tokens": 1 << 30,
    "max_model_len": 1 << 30,
}
"""More than any machine has, and no more than fits a small one's memory as a scheduler's tables."""
_MOST_GROUPS = 64

_Event = Head | Scheduled | Committed | Cut


class RunReport(msgspec.Struct, frozen=True):
    """How the replay of one engine's run went."""

    steps: int
    """Plans with rows that were compared and equal."""
    tokens: int
    """Tokens they computed."""
    preemptions: int
    difference: str | None
    """None when every plan was the same; else where the first that was not differs."""
    unfinished: tuple[int, ...] = ()
    """Steps that were launched and have no samples: where the engine died, or stopped."""
    cut: bool = False
    """The run's last line is not whole."""


def replay(path: str | Path) -> tuple[RunReport, ...]:
    """Feed the inputs and samples of each run in the log to a fresh scheduler.

    Raises ModelError for a file that is not a log, or a damaged one.
    """
    reports = []
    for head, events in _runs(read_log(path)):
        reports.append(_replay_run(path, head, events))
        for _ in events:  # what follows a difference
            pass
    if not reports:
        raise ModelError(f"{path} is empty.")
    return tuple(reports)


def _runs(events: Iterator[_Event]) -> Iterator[tuple[Head, Iterator[_Event]]]:
    """Each head and what follows it; the second is to be exhausted before the next is asked for."""
    first = next(events, None)
    ahead = [first] if isinstance(first, Head) else []

    def run() -> Iterator[_Event]:
        for event in events:
            if isinstance(event, Head):
                ahead.append(event)
                return
            yield event

    while ahead:
        yield ahead.pop(), run()


def _replay_run(path: str | Path, head: Head, events: Iterable[_Event]) -> RunReport:
    scheduler = _scheduler(path, head)
    flying: dict[int, Plan] = {}
    steps = tokens = 0
    cut = False
    difference = None
    for event in events:
        try:
            if isinstance(event, Scheduled):
                plan = scheduler.schedule(event.inputs)
                if plan != event.plan:
                    difference = f"step {event.plan.step}: {_first_difference(event.plan, plan, 'plan')}"
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
            else:
                cut = True
        except ModelError:
            raise
        except Exception as error:  # noqa: BLE001 - perhaps the very fault that the log was written to find
            step = event.plan.step if isinstance(event, Scheduled) else getattr(event, "step", "")
            difference = f"step {step}: the scheduler fails in the replay ({error!r:.200})"
            break
    unfinished = () if difference else tuple(flying)
    return RunReport(steps, tokens, scheduler.counters.preemptions, difference, unfinished, cut)


def _scheduler(path: str | Path, head: Head) -> Scheduler:
    limits = head.config.limits
    for name, most in _MOST.items():
        if not 0 < getattr(limits, name) <= most:
            raise ModelError(
                f"{path} says that {name} was {getattr(limits, name)}; 1 to {most} can be replayed."
            )
    if not 0 < head.config.kv_groups <= _MOST_GROUPS:
        raise ModelError(f"{path} says that there were {head.config.kv_groups} KV groups; is it a step log?")
    try:
        return Scheduler(head.config, head.vocabulary())
    except Exception as error:
        raise ModelError(
            f"{path} has a damaged head ({error!r:.200}); is it a step log of this version?"
        ) from error


def _first_difference(logged: Any, replayed: Any, name: str) -> str:
    """Where two plans, or parts of them, differ first, depth first; they do differ."""
    if isinstance(logged, msgspec.Struct) and type(logged) is type(replayed):
        fields = type(logged).__struct_fields__
        pairs = ((f"{name}.{field}", getattr(logged, field), getattr(replayed, field)) for field in fields)
    elif isinstance(logged, tuple) and isinstance(replayed, tuple):
        pairs = (
            (f"{name}[{place}]", *pair) for place, pair in enumerate(zip(logged, replayed, strict=False))
        )
    else:
        return f"{name} is {reprlib.repr(logged)} in the log and {reprlib.repr(replayed)} in the replay"
    for inner, ours, theirs in pairs:
        if ours != theirs:
            return _first_difference(ours, theirs, inner)
    return f"{name} has {len(logged)} entries in the log and {len(replayed)} in the replay"
