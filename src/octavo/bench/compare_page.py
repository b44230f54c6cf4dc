"""A comparison of two records as plain values and as a page: the verdict, each value, both distributions.

Knows its order, and neither how a verdict is found nor HTML.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from octavo.bench.compare import Compared, Comparison
from octavo.bench.curves import cumulative
from octavo.bench.definitions import definition
from octavo.bench.measures import distributions
from octavo.bench.record import Record, Run
from octavo.bench.shown import label_of, show, show_load
from octavo.bench.window import choose
from octavo.charts.figure import Axis, Figure, Series
from octavo.charts.page import Note, Page, Part, Section, Table, Text

__all__ = ["change_of", "compare_page", "plain_comparison"]

_DRAWN = ("ttft", "itl", "e2e")


def change_of(row: Compared, *, brief: bool = False) -> str:
    """`+3.1 % (+1.0 to +5.2 %)`; of shares in percentage points; without an interval where nothing says one.

    A rate that was 0 has no ratio, and one that is 0 has lost all of it. `brief`: never with one.
    """
    share = definition(row.name).unit == "share"
    if not share and row.a <= 0.0 < row.b:
        return "new"
    if not share and row.b <= 0.0 < row.a:
        return "-100 %"
    points = " points" if share else ""
    text = f"{100 * row.change.estimate:+.1f} %{points}"
    if brief or not math.isfinite(row.change.low) or not math.isfinite(row.change.high):
        return text
    return f"{text} ({100 * row.change.low:+.1f} to {100 * row.change.high:+.1f} %)"


def plain_comparison(comparison: Comparison) -> dict[str, Any]:
    """What can be written as JSON."""
    return {
        "regression": comparison.regression,
        "sentence": str(comparison),
        "threshold": comparison.threshold,
        "values": [
            {
                "name": row.name,
                "load": row.load,
                "a": row.a,
                "b": row.b,
                "change": _finite(row.change.estimate),
                "interval": [_finite(row.change.low), _finite(row.change.high)],
                "method": row.method,
                "p_worse": row.p_worse,
                "p_better": row.p_better,
                "word": row.word,
            }
            for row in comparison.rows
        ],
        "unlike": [str(one) for one in comparison.unlike],
        "notes": list(comparison.notes),
    }


def compare_page(comparison: Comparison, a: Record, b: Record, names: tuple[str, str]) -> Page:
    """`names`: of the two, as files are called."""
    kind = "bad" if comparison.regression else "info" if comparison.regression is None else "good"
    rows = [
        [label_of(row.name), row.load, show(row.name, row.a), show(row.name, row.b), change_of(row), row.word]
        for row in comparison.rows
    ]
    bad = [place for place, row in enumerate(comparison.rows) if row.word == "worse"]
    told: list[Part] = [
        Table(
            caption=f"A is {names[0]}, B is {names[1]}",
            head=["", "load", "A", "B", "change and its 95 % interval", "B is"],
            rows=rows,
            bad=bad,
            words=(0, 1),
        ),
        Text(
            f"Worse is what chance does not explain (5 % over all rows together, Holm's correction) and is more than "
            f"{100 * comparison.threshold:g} %. Same is what surely differs by less. For all else more runs would tell."
        ),
    ]
    notes = [*(str(one) for one in comparison.unlike), *comparison.notes]
    if notes:
        told.append(Note(notes))
    sections = [
        Section(title="Values", parts=told),
        Section(title="Distributions", parts=_distributions(a, b)),
    ]
    return Page(
        title=f"{Path(names[0]).name} and {Path(names[1]).name}",
        about=f"{a.model} on {a.name}, compared by octavo bench {b.octavo}",
        top=[Note([str(comparison)], kind)],
        sections=[section for section in sections if section.parts],
        foot="Made by octavo bench compare; charts by uPlot (MIT).",
    )


def _distributions(a: Record, b: Record) -> list[Part]:
    """Of the first run of each load that both have."""
    firsts: list[dict[tuple[float | None, int | None], Run]] = [{}, {}]
    for record, found in zip((a, b), firsts, strict=True):
        for run in record.runs:
            if run.exchanges:
                found.setdefault((run.rate, run.clients), run)
    parts: list[Part] = []
    for load, run in firsts[0].items():
        if load not in firsts[1]:
            continue
        both = [distributions(one, choose(one)) for one in (run, firsts[1][load])]
        for metric in _DRAWN:
            series = [
                Series(name=name, x=curve[0], y=curve[1])
                for name, values in zip("AB", both, strict=True)
                if metric in values and (curve := cumulative(values[metric])) is not None
            ]
            if len(series) == 2:
                parts.append(
                    Figure(
                        title=f"{label_of(metric)} at {show_load(*load)}",
                        note="share of values up to a time, in the first run of each",
                        x=Axis(label="time", quantity="time", log=True),
                        y=Axis(label="share", quantity="share", low=0, high=1),
                        series=series,
                        height=200,
                    )
                )
    return parts


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
