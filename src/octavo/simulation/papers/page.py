"""A paper's table and curves as one HTML page. Knows results, no run."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.charts.figure import Axis, Bound, Figure, Series
from octavo.charts.page import Note, Page, Section, Table, Terms
from octavo.simulation.papers.table import AGREES, Curve, Result, Row

__all__ = ["CHECKED", "HEAD", "cells", "page", "shown"]

HEAD = ("", "where", "checked", "published", "simulated", "low to high", "ratio")
CHECKED = {
    "text": "the paper's sentence",
    "notes": "notes on its figures",
    "artifact": "the authors' files",
    "memory": "unchecked",
    "": "",
}


def shown(value: float | None, unit: str) -> str:
    """A number in its unit; – for none."""
    if value is None:
        return "–"
    match unit:
        case "share":
            return f"{value:.1%}"
        case "ratio":
            return f"{value:.2f}×"
        case "s/token":
            return f"{value * 1e3:.1f} ms/token"
        case "1/s":
            return f"{value:.3g}/s"
    return f"{value:.2f}"


def cells(row: Row) -> tuple[str, ...]:
    """One row as words, in the order of `HEAD`."""
    published = row.published
    told = "–"
    if published is not None:
        told = _range(published.low, published.high, row.unit)
    wide = row.least is not None and row.least != row.most
    return (
        row.name,
        published.where if published is not None else "",
        CHECKED[published.checked if published is not None else ""],
        told,
        shown(row.simulated, row.unit),
        _range(row.least, row.most, row.unit) if wide else "",
        "" if row.ratio is None else f"{row.ratio:.2f}",
    )


def _range(low: float | None, high: float | None, unit: str) -> str:
    ends = dict.fromkeys([shown(low, unit), shown(high, unit)])
    return " to ".join(ends)


def page(result: Result) -> Page:
    """Everything in it."""
    groups = dict.fromkeys(row.group for row in result.rows)
    tables = [_table(group, [row for row in result.rows if row.group == group]) for group in groups]
    whys = [(f"{row.group}: {row.name}", [row.why]) for row in result.rows if row.why]
    sections = [Section(title="Published and simulated", parts=tables)]
    if whys:
        sections.append(Section(title="Why they differ", parts=[Terms(terms=whys)]))
    figures = dict.fromkeys(curve.figure for curve in result.curves)
    drawn = [_figure(name, [one for one in result.curves if one.figure == name]) for name in figures]
    sections.append(Section(title="Curves", parts=drawn))
    sections.append(
        Section(
            title="Settings",
            parts=[
                Terms(terms=[(name, [words]) for name, words in result.settings]),
                Note(texts=result.missing),
            ],
        )
    )
    return Page(
        title=result.title,
        about=f"{result.source}, run again by Octavo's scheduler on a simulated machine",
        top=[Note(texts=["Few requests: directions hold, numbers do not."], kind="bad")]
        if result.quick
        else [],
        sections=sections,
        foot="Uncalibrated: steps take what a roofline says. Ratios are simulated over published, to the nearer end "
        f"of a range; outside {AGREES[0]:g} to {AGREES[1]:g} they are explained.",
    )


def _table(group: str, rows: list[Row]) -> Table:
    return Table(
        caption=group,
        head=HEAD,
        rows=[cells(row) for row in rows],
        words=(0, 1, 2),
        bad=[place for place, row in enumerate(rows) if not row.agrees],
    )


def _figure(title: str, curves: Iterable[Curve]) -> Figure:
    curves = list(curves)
    first = curves[0]
    bounds = [] if first.bound is None else [Bound(at=first.bound, label="compared here")]
    return Figure(
        title=title,
        x=Axis(label=first.x_label, low=0.0),
        y=Axis(label=first.y_label, quantity="time", log=True),
        series=[Series(name=one.name, x=one.x, y=one.y) for one in curves],
        bounds=bounds,
    )
