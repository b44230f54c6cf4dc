"""`octavo route calibrate`: what it does and prints. Knows the terminal; the sums are in `routing/`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
from rich.console import Console

from octavo.cli.route_data import Data, asked, check_tiers, print_json, telling
from octavo.cli.route_tables import calibrated_table, curve_table, lines_of, parts_table
from octavo.errors import InvalidParameter, RoutingError
from octavo.routing.calibration import Budget, for_budget, for_quality
from octavo.routing.curve import curves, points_of, prices_of
from octavo.routing.duplicates import groups_of
from octavo.routing.evaluation import judged
from octavo.routing.policy import Policy

__all__ = ["Target", "calibrate_policy"]


@dataclass(frozen=True)
class Target:
    """What a threshold is for."""

    quality: float | None
    budget: str | None
    requests_per_day: float | None
    careful: bool


def calibrate_policy(
    data: Data, path: Path, target: Target, seed: int, out: Path | None, *, json: bool
) -> None:
    """`octavo route calibrate`."""
    if (target.quality is None) == (target.budget is None):
        raise InvalidParameter("Give either --quality or --budget, so that there is one target.")
    if target.requests_per_day is not None and not 0 < target.requests_per_day < math.inf:
        raise InvalidParameter(f"--requests-per-day is {target.requests_per_day:g}; it must be above 0.")
    policy = Policy.load(path)
    labels, costs = data.read()
    check_tiers(policy, labels)
    prices = np.array(policy.header.prices) if costs is None else prices_of(costs, len(labels.tiers))
    rows = policy.unseen(labels.prompts)
    mine = labels.take(rows)
    each = None
    if costs is not None:
        each = mine.costs if data.prices is None else np.broadcast_to(costs, mine.correct.shape)
    with telling(json) as tell:
        probabilities, _ = asked(policy, mine, tell) if len(mine) else (np.zeros(mine.correct.shape), None)
        tell("near duplicates")
        groups = groups_of(mine.prompts)
        tell("draws")
        if target.quality is not None:
            words = f"{target.quality:g} of the best tier's quality"
            found = for_quality(probabilities, mine.correct, prices, groups, target.quality, each, seed=seed)
        else:
            assert target.budget is not None
            if each is None:
                raise RoutingError(
                    f"--budget is '{target.budget}', and no price is known for tier '{labels.tiers[0]}'; give "
                    "--prices, or logs with a column that ends in _cost for each tier."
                )
            words = target.budget
            days = labels.days
            per_day = target.requests_per_day or (len(labels) / days if days else None)
            budget = Budget.parse(target.budget, per_day)
            found = for_budget(probabilities, mine.correct, prices, groups, budget, each, seed=seed)
        tell("the curve")
        curve = curves(probabilities, mine.correct, prices, each)
        points = points_of(curve)
        whole = replace(mine, tasks=None)
        own_costs = None if each is None else each.mean(axis=0)
        [part] = judged(
            whole, probabilities, groups, quality=target.quality or 0.95, costs=own_costs, seed=seed
        )
    chosen = found.threshold.value
    if target.careful:  # more of the dearest tier is surer of quality, less of it is surer of the budget
        chosen = found.threshold.low if target.quality is not None else found.threshold.high
    if out is not None:
        header = msgspec.structs.replace(policy.header, prices=tuple(prices.tolist()))
        changed = Policy(header, policy.classifier, policy.seen)
        changed.with_threshold(chosen, f"{words}, on {len(mine):,} rows of logs").save(out)
    dropped = len(labels) - len(mine)
    if json:
        told = {"target": words, "threshold": chosen, "left_out": dropped, "calibrated": found}
        print_json({**told, "curve": points, "routers": part})
        return
    console = Console()
    left = f"; {dropped:,} that it was trained on are left out" if dropped else ""
    console.print(f"{words}, on {len(mine):,} rows{left}:", markup=False)
    console.print(calibrated_table(found, labels.tiers, money=each is not None))
    console.print(curve_table(points, money=each is not None))
    console.print(parts_table([part], target.quality or 0.95))
    for line in lines_of(part):
        console.print(line, markup=False)
    console.print(
        f"threshold {chosen:+.4f}"
        + (f", written to {out}." if out is not None else "; --out FILE keeps it."),
        markup=False,
    )
