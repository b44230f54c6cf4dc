"""Steps of a simulated run on a terminal, in a page and in a file. Knows what was recorded, not how it came about."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.console import Console
from rich.text import Text

from octavo.bench.record import Run
from octavo.charts.page import Note, Page, Part, Section, Table
from octavo.charts.page import Text as Paragraph
from octavo.errors import BenchError, InvalidParameter
from octavo.simulation.gantt import (
    MAX_ROWS,
    STATES,
    Row,
    Stall,
    State,
    gantt,
    lanes,
    longest_stall,
    slowest,
    stall_words,
    window_of,
)
from octavo.telemetry.timeline import Timeline, chrome_trace, json_lines

__all__ = ["Seen", "Window", "parse_window", "print_gantt", "seen_window", "with_steps", "write_steps"]

_MARKS: dict[State, tuple[str, str]] = {
    "prefill": ("P", "yellow"),
    "decode": ("d", "blue"),
    "draft": ("D", "magenta"),
    "stalled": (".", "bold red"),
    "waiting": ("w", "dim"),
    "preempted": ("x", "bold yellow"),
}
"""A letter and a colour for each, so that either is enough."""
_MOST_ROWS = 40
"""On a terminal."""
_AROUND_STALL = "stall"


class Window(NamedTuple):
    """Microseconds of virtual time."""

    from_us: int
    until_us: int


class Seen(NamedTuple):
    """A run that was watched in `window`, and before it long enough for the step that it begins in."""

    window: Window
    timeline: Timeline
    stall: Stall | None
    """The longest of the run, where it lies in the window."""

    @property
    def rows(self) -> list[Row]:
        """Of whoever is there in the window."""
        from_us, until_us = self.window
        return [
            row
            for row in gantt(self.timeline)
            if row.spans[0].begin_us < until_us and row.spans[-1].end_us > from_us
        ]

    @property
    def words(self) -> str:
        if self.stall is None:
            return f"From {self.window.from_us / 1e6:g} s to {self.window.until_us / 1e6:g} s."
        return stall_words(self.stall, list(self.timeline), self.rows)


def parse_window(text: str | None) -> Window | None:
    """`FROM:TO` in seconds; None for `stall`, and for None. Raises InvalidParameter."""
    if text is None or text == _AROUND_STALL:
        return None
    from_, colon, to = text.partition(":")
    try:
        window = Window(int(float(from_ or "0") * 1e6 + 0.5), int(float(to) * 1e6 + 0.5))
    except (ValueError, OverflowError):
        window = Window(0, 0)
    if not colon or not 0 <= window.from_us < window.until_us:
        raise InvalidParameter(
            f"--gantt is {text!r}; it must be `{_AROUND_STALL}`, or two times in seconds such as 12:13.5, the earlier "
            "one first."
        )
    return window


def seen_window(run: Run, asked: Window | None) -> tuple[Window, Stall | None]:
    """What was asked for, or what lies around the longest stall, or the first second."""
    stall = longest_stall(run)
    if asked is not None:
        inside = stall is not None and asked.from_us <= stall.begin_us and stall.end_us <= asked.until_us
        return asked, stall if inside else None
    return Window(0, 1_000_000) if stall is None else Window(*window_of(stall)), stall


def print_gantt(seen: Seen, console: Console) -> None:
    """A row for each sequence, a column for each short time: what it did most of it."""
    console.print(seen.words, markup=False)
    rows = slowest(seen.rows, _MOST_ROWS)
    if not rows:
        console.print("No step begins in this time.", markup=False)
        return
    names = [row.name for row in rows]
    wide = max(map(len, names))
    columns = max(10, min(console.width - wide - 2, 160))
    from_us, until_us = seen.window
    edges = [from_us + (until_us - from_us) * place // columns for place in range(columns + 1)]
    legend = Text(" " * (wide + 2))
    for state in STATES:
        mark, style = _MARKS[state]
        legend.append(mark, style).append(f" {state}  ")
    console.print(legend)
    for name, row in zip(names, rows, strict=True):
        line = Text(f"{name:>{wide}}  ", no_wrap=True, overflow="crop")
        for begin_us, end_us in pairwise(edges):
            lasting = {state: row.of(state, begin_us, end_us) for state in STATES}
            most = max(STATES, key=lambda state: lasting[state])
            line.append(*_MARKS[most]) if lasting[most] else line.append(" ")
        console.print(line)
    end = f"{until_us / 1e6:.3f} s"
    start = f"{from_us / 1e6:.3f} s"
    console.print(" " * (wide + 2) + start + end.rjust(columns - len(start)), markup=False)
    if (more := len(seen.rows) - len(rows)) > 0:
        console.print(f"{more} more sequences have no room here; --html shows them.", markup=False)


def with_steps(page: Page, seen: Seen) -> Page:
    """The page with a section on the steps, behind those on time."""
    rows = slowest(seen.rows, MAX_ROWS)
    parts: list[Part] = [
        Note([seen.words]),
        Paragraph("Drag over the figure to look closer. Each part of a prompt is its own span."),
        lanes(seen.rows, *seen.window),
        Table(
            caption="How long each sequence did what in this time",
            head=["", *STATES],
            rows=[
                [row.name, *(f"{row.of(state, *seen.window) / 1e3:,.1f} ms" for state in STATES)]
                for row in rows
            ],
            folded=True,
        ),
    ]
    at = next(
        (place + 1 for place, one in enumerate(page.sections) if one.title == "Timeline"), len(page.sections)
    )
    sections = [*page.sections[:at], Section(title="Steps", parts=parts), *page.sections[at:]]
    return msgspec.structs.replace(page, sections=sections)


def write_steps(path: Path, timeline: Timeline) -> None:
    """As a trace that ui.perfetto.dev loads where the name ends in .json, else a line of JSON for each. Raises
    BenchError."""
    try:
        with path.open("wb") as file:
            if path.suffix == ".json":
                file.write(msgspec.json.encode(chrome_trace(timeline)))
            else:
                file.writelines(json_lines(timeline))
    except OSError as error:
        raise BenchError(f"{path} cannot be written ({error.strerror}); check the path.") from None
