"""`octavo replay`: schedule a recorded run again and compare every plan. Knows no step and no plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["replay"]


def replay(
    log: Annotated[Path, typer.Argument(help="A file that octavo serve --step-log wrote.")],
) -> None:
    """Run the scheduler again over a step log; exit 1 at the first plan that differs."""
    from octavo.engine.replay import replay as replay_log

    report = replay_log(log)
    if report.difference is not None:
        print(f"different after {report.steps} equal steps: {report.difference}")
        raise typer.Exit(1)
    print(f"same: {report.steps} steps, {report.tokens} tokens, {report.preemptions} preemptions")
