"""`octavo route check`: how often feedback's conclusions are right, on small labelled sets. Knows the terminal."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from rich.console import Console

from octavo.cli.route_data import print_json
from octavo.errors import InvalidParameter
from octavo.routing.checks import Found, drift_cases, reask_pairs
from octavo.routing.drift import Drift
from octavo.routing.judge import LEVEL, Trial
from octavo.routing.nearest import nearest
from octavo.routing.reask import Asking, alike

__all__ = ["check_feedback", "drift_found", "reask_found"]

SUBJECTS = ("reask", "drift", "judge")
REFERENCE, WINDOW = 2000, 500


def reask_found(*, later: bool | None = None) -> Found:
    """On the pairs of questions; `later`: only those written afterwards, or before."""
    return Found.of([
        (pair.again, alike(Asking.of(pair.first), Asking.of(pair.second)))
        for pair in reask_pairs()
        if later is None or pair.later == later
    ])  # fmt: skip


def drift_found() -> Found:
    """On the references and windows."""
    results = []
    for case in drift_cases():
        reference, window = case.values(REFERENCE, WINDOW)
        drift = Drift(reference, window=WINDOW)
        [reading] = [found for value in window if (found := drift.add(value)) is not None]
        results.append((case.moved, reading.alarm))
    return Found.of(results)


def check_feedback(subject: str, tiers: Path | None, judge: str | None, *, json: bool) -> None:
    """`octavo route check`."""
    if subject not in SUBJECTS:
        raise InvalidParameter(f"{subject!r} cannot be checked; {nearest(subject, SUBJECTS)}", "subject")
    if subject == "judge":
        if tiers is None:
            raise InvalidParameter(
                "A judge is a tier; give --tiers TIERS.toml, and --judge NAME where the file does not say which.",
                "--tiers",
            )
        name, trial = asyncio.run(_judged(tiers, judge))
        if json:
            print_json({"judge": name, "trial": trial, "chance": trial.chance, "level": LEVEL})
        else:
            Console().print(
                f"{name}: of {trial.pairs} pairs it said the same of {trial.decided} in both orders, and was right "
                f"about {trial.right}: precision {trial.precision:.3f}, recall {trial.recall:.3f}; a coin does as "
                f"well with p = {trial.chance:.2g}.",
                markup=False,
            )
        trial.check(name)
        return
    parts = {"all": drift_found()}
    if subject == "reask":
        parts = {"first": reask_found(later=False), "later": reask_found(later=True), "all": reask_found()}
    if json:
        print_json({
            name: {"found": one, "precision": one.precision, "recall": one.recall}
            for name, one in parts.items()
        })  # fmt: skip
        return
    for name, one in parts.items():
        cases = one.true + one.false + one.missed + one.right_silence
        Console().print(
            f"{subject}, {name}: {cases} cases, {one.true + one.false} alarms: precision {one.precision:.3f} "
            f"({one.false} false), recall {one.recall:.3f} ({one.missed} missed)",
            markup=False,
        )


async def _judged(path: Path, name: str | None) -> tuple[str, Trial]:
    from octavo.routing.gateway import Gateway
    from octavo.routing.judging import tried_tier
    from octavo.routing.tier_file import read_tiers

    tiers = read_tiers(path, os.environ)
    chosen = name or (tiers.feedback.judge if tiers.feedback is not None else None)
    if chosen is None:
        raise InvalidParameter("The file names no judge; give --judge NAME.", "--judge")
    if chosen not in tiers.names:
        raise InvalidParameter(f"--judge is {chosen!r}, which is no tier; {nearest(chosen, tiers.names)}")
    gateway = Gateway(tiers)
    try:
        return chosen, await tried_tier(gateway, chosen)
    finally:
        await gateway.close()
