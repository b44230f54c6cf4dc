"""`octavo replay`: schedule a recorded run again and compare every plan. Knows no step and no plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from octavo.engine.replay import RunReport

__all__ = ["replay"]


def replay(
    log: Annotated[Path, typer.Argument(help="A file that octavo serve --step-log wrote.")],
) -> None:
    """Run the scheduler again over a step log, each engine's run in it; exit 1 where a plan differs."""
    from octavo.engine.replay import replay as replay_log
    from octavo.errors import ModelError

    runs = replay_log(log)
    if not any(run.steps or run.difference for run in runs):
        raise ModelError(f"{log} has no steps, so there is nothing to compare; was a request served?")
    for number, run in enumerate(runs, 1):
        print((f"run {number} of {len(runs)}: " if len(runs) > 1 else "") + _said(run))
    if any(run.difference is not None for run in runs):
        raise typer.Exit(1)


def _said(run: RunReport) -> str:
    if run.difference is not None:
        return f"different after {run.steps} equal steps: {run.difference}"
    parts = ["no steps"]
    if run.steps:
        parts = [f"same: {run.steps} steps, {run.tokens} tokens, {run.preemptions} preemptions"]
    parts += [f"step {step} was launched and never finished" for step in run.unfinished]
    if run.cut:
        parts.append("the last line is cut off")
    return "; ".join(parts)
