"""The tables of `octavo route`. Knows words and columns, and no sums."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.table import Column, Table

from octavo.routing.calibration import Calibrated, Estimate
from octavo.routing.curve import Point
from octavo.routing.evaluation import Part, Score

__all__ = ["calibrated_table", "curve_table", "lines_of", "parts_table"]


def parts_table(parts: Sequence[Part], quality: float) -> Table:
    """Each task's routers; beneath the router, between what 95 % of the draws are."""
    names = ("rows", "", "APGR", "CPT 50 %", "CPT 80 %", f"cost at {quality:g}")
    table = Table(*(Column(name, no_wrap=True) for name in names), box=None, pad_edge=False)
    for part in parts:
        table.add_row(part.name, "router", *_values(part.router))
        table.add_row(f"({part.rows:,})", "95 % of draws", *_ranges(part.router))
        if part.plain is not None:
            table.add_row("", "plain TF-IDF", *_values(part.plain))
        table.add_row("", "random mix", "0.500", "0.500", "0.800", _number(part.random_at_quality))
        table.add_row("", "oracle", *_values(part.oracle))
    return table


def lines_of(part: Part) -> list[str]:
    """What a table has no column for: each tier alone, and what the router gains."""
    best = max(part.accuracy, key=lambda tier: part.accuracy[tier])
    right = ", ".join(f"{tier} {share:.3f}" for tier, share in part.accuracy.items())
    found = [f"{part.name}: right are {right}; the best single tier is {best}."]
    gains = [("a random mix", part.gain_over_random)]
    if part.gain_over_plain is not None:
        gains.insert(0, ("plain TF-IDF", part.gain_over_plain))
    for name, gain in gains:
        if not math.isnan(gain.value):
            found.append(
                f"  APGR over {name}: {gain.value:+.3f} ({gain.low:+.3f} to {gain.high:+.3f}), paired draws."
            )
    return found


def curve_table(points: Sequence[Point], *, money: bool = False) -> Table:
    """What quality costs, from the cheapest tier alone to the dearest alone."""
    names = [
        "threshold",
        "cost share",
        "answered right",
        "PGR",
        "a random mix",
        *(["a request costs"] if money else []),
    ]
    table = Table(*names, box=None, pad_edge=False)
    for one in points:
        row = [
            f"{one.threshold:+.3f}",
            f"{one.share:.3f}",
            f"{one.quality:.4f}",
            _number(one.reached),
            f"{one.random:.4f}",
        ]
        table.add_row(*row, *([f"{one.cost:.4g}"] if money else []))
    return table


def calibrated_table(found: Calibrated, tiers: Sequence[str], *, money: bool = False) -> Table:
    """A threshold and what it brings."""
    table = Table("", "", "95 % of draws", box=None, pad_edge=False)
    rows = [
        ("threshold", found.threshold, "+.4f"),
        ("answered right", found.quality, ".4f"),
        (f"sent to {tiers[-1]}", found.dearest_share, ".3f"),
    ]
    if money:
        rows.append(("a request costs", found.cost, ".6g"))
    for label, one, form in rows:
        table.add_row(label, format(one.value, form), f"{one.low:{form}} to {one.high:{form}}")
    return table


def _estimates(score: Score) -> tuple[Estimate, ...]:
    return score.apgr, score.cpt50, score.cpt80, score.at_quality


def _values(score: Score) -> list[str]:
    return [_number(one.value) for one in _estimates(score)]


def _ranges(score: Score) -> list[str]:
    return ["" if math.isnan(one.low) else f"{one.low:.3f}–{one.high:.3f}" for one in _estimates(score)]


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"
