"""An observation as one page: the advice, the check, every change that was tried, the load. Knows pages and charts."""

from __future__ import annotations

from octavo.charts.figure import Axis, Figure, Series
from octavo.charts.page import Code, Note, Page, Part, Section, Table, Text
from octavo.planning.observation import Observation
from octavo.planning.observation_words import (
    advice_lines,
    brings,
    check_rows,
    remedy_heads,
    remedy_rows,
    settings_words,
    verdict,
)
from octavo.planning.remedies import SHOWN

__all__ = ["observation_page"]


def observation_page(told: Observation) -> Page:
    """Everything that is told."""
    best: list[Part] = []
    if told.best is not None:
        best = [Code(told.best.option), *(Text(line) for line in brings(told.best))]
    sections = [
        Section(title="What to change", parts=[*best, *(Text(line) for line in advice_lines(told))]),
        Section(title="Each option by itself", parts=_remedies(told)),
        Section(title="How far off the simulation is", parts=[_check(told)]),
        Section(title="The load", parts=_load(told)),
    ]
    return Page(
        title=f"A server watched: {told.model}",
        about=f"{told.url}, {told.length_s:.0f} s, {told.server}: {settings_words(told)}",
        top=[Note([verdict(told)], "good" if told.best is not None or told.meets else "info")],
        sections=[one for one in sections if one.parts],
        foot="Made by octavo plan --observe; charts by uPlot (MIT).",
    )


def _remedies(told: Observation) -> list[Part]:
    if not told.remedies:
        return []
    head = ["option", *remedy_heads(SHOWN), ""]
    return [
        Table(
            caption="One option changed, all else as it is",
            head=head,
            rows=remedy_rows(told, SHOWN),
            words=(0, len(head) - 1),
        )
    ]


def _check(told: Observation) -> Table:
    rows = check_rows(told)
    bad = [place for place, row in enumerate(rows) if row[-1].endswith("far")]
    return Table(
        caption="The server as it is, watched and simulated",
        head=["", "watched", "simulated", "difference"],
        rows=rows,
        bad=bad,
    )


def _load(told: Observation) -> list[Part]:
    table = Table(
        caption="What was asked",
        head=["", ""],
        rows=[[name, words] for name, words in told.load],
        words=(0, 1),
    )
    if len(told.timeline) < 2:
        return [table]
    at_s, running, waiting = zip(*told.timeline, strict=True)
    figure = Figure(
        title="Requests that ran and waited",
        x=Axis(label="seconds"),
        y=Axis(label="requests", low=0),
        series=[
            Series(name="running", x=at_s, y=running, kind="step"),
            Series(name="waiting", x=at_s, y=waiting, kind="step"),
        ],
    )
    return [table, figure]
