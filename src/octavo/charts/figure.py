"""What a figure shows: axes, series, bounds, lanes of spans. Knows numbers, and no drawing.

A figure becomes JSON for `draw.js`, and a short table for a reader without JavaScript or without eyes for curves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

__all__ = ["Axis", "Bound", "Figure", "Lanes", "Series", "Shade", "shown"]

Quantity = Literal["time", "share", "number"]

_DIGITS = 7
"""Of a number in a page: a pixel is a thousandth of a figure, and a time stamp of a long run must stay apart."""

MAX_ROWS = 24
"""Of a figure's table."""


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """What one direction means. Times are in seconds, shares in 0..1."""

    label: str
    quantity: Quantity = "number"
    unit: str = ""
    """Said after a number, such as `tokens/s`; times and shares have their own."""
    log: bool = False
    low: float | None = None
    """Where the axis begins at least; None lets the values say."""
    high: float | None = None


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Values over x. None in `y` is a gap.

    `line` and `step` need x that grows; `points` and `path` (points joined in their own order) do not.
    """

    name: str
    kind: Literal["line", "step", "points", "path"] = "line"
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float | None] | None = None
    """With `high`: an interval around each value, drawn as a band or, for points and paths, as whiskers."""
    high: Sequence[float | None] | None = None
    labels: Sequence[str] | None = None
    """Said of a point under the cursor, such as a rate."""
    colour: int | None = None
    """1..8 of the page's colours; None takes the next."""
    dashed: bool = False
    hidden: bool = False
    """Not drawn until its name is pressed."""

    def __post_init__(self) -> None:
        parts = [self.y, self.low, self.high, self.labels]
        if any(part is not None and len(part) != len(self.x) for part in parts):
            raise ValueError(
                f"{self.name}: x has {len(self.x)} values; y, low, high and labels must have as many"
            )
        if (self.low is None) != (self.high is None):
            raise ValueError(f"{self.name}: an interval has a low and a high end")
        grows = all(a < b for a, b in zip(self.x, self.x[1:], strict=False))
        if self.kind in ("line", "step") and not grows:
            raise ValueError(f"{self.name}: the x of a {self.kind} must grow")


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """A line across the figure, such as a target."""

    at: float
    label: str
    axis: Literal["x", "y"] = "y"


class Shade(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of x that is told apart, such as a warm-up."""

    start: float
    end: float
    label: str


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """Series over one x. Figures with the same `group` move their cursors and zoom together."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    bounds: Sequence[Bound] = ()
    shades: Sequence[Shade] = ()
    note: str = ""
    group: str = ""
    height: int = 260
    """Of the plot, in pixels."""

    def spec(self) -> dict[str, Any]:
        """What `draw.js` reads."""
        return {
            "kind": "series",
            **_common(self.x, self.group, self.height, self.shades),
            "y": _axis(self.y),
            "bounds": msgspec.to_builtins(self.bounds),
            "series": [
                {
                    "name": one.name,
                    "kind": one.kind,
                    "colour": one.colour or 1 + place % 8,
                    "dashed": one.dashed or (one.colour is None and place > 7),
                    "hidden": one.hidden,
                    "x": _short(one.x),
                    "y": _short(one.y),
                    "low": None if one.low is None else _short(one.low),
                    "high": None if one.high is None else _short(one.high),
                    "labels": None if one.labels is None else list(one.labels),
                }
                for place, one in enumerate(self.series)
            ],
        }

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """Head and rows of the figure's table: about evenly chosen points, the first and the last of each series."""
        intervals = any(one.low is not None for one in self.series)
        head = ["series", self.x.label, self.y.label, *(["from", "to"] if intervals else [])]
        rows = []
        share = max(2, MAX_ROWS // max(1, len(self.series)))
        for one in self.series:
            for place in _evenly(len(one.x), share):
                row = [one.name, shown(one.x[place], self.x), shown(one.y[place], self.y)]
                if intervals:
                    row += [shown(ends[place] if ends else None, self.y) for ends in (one.low, one.high)]
                rows.append(row)
        return head, rows


class Lanes(msgspec.Struct, frozen=True, kw_only=True):
    """Spans of time in lanes, one above the other: who waited for what, and how long."""

    title: str
    x: Axis
    classes: Sequence[tuple[str, int]]
    """Name and colour (1..8) of each class of spans."""
    names: Sequence[str]
    """Of each lane, from the top."""
    lane: Sequence[int]
    start: Sequence[float]
    end: Sequence[float]
    of: Sequence[int]
    """The class of each span."""
    shades: Sequence[Shade] = ()
    note: str = ""
    group: str = ""
    height: int = 320

    def __post_init__(self) -> None:
        if not len(self.lane) == len(self.start) == len(self.end) == len(self.of):
            raise ValueError("each span has a lane, a start, an end and a class")

    def spec(self) -> dict[str, Any]:
        """What `draw.js` reads."""
        return {
            "kind": "lanes",
            **_common(self.x, self.group, self.height, self.shades),
            "classes": [{"name": name, "colour": colour} for name, colour in self.classes],
            "names": list(self.names),
            "lane": list(self.lane),
            "start": _short(self.start),
            "end": _short(self.end),
            "of": list(self.of),
        }

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """Head and rows of the figure's table: how many spans of each class, and how long."""
        rows = []
        for place, (name, _) in enumerate(self.classes):
            spans = zip(self.start, self.end, self.of, strict=True)
            lengths = [end - start for start, end, of in spans if of == place]
            longest = max(lengths, default=None)
            mean = sum(lengths) / len(lengths) if lengths else None
            rows.append([name, str(len(lengths)), shown(mean, self.x), shown(longest, self.x)])
        return ["class", "spans", "mean", "longest"], rows


def shown(value: float | None, axis: Axis) -> str:
    """A value in its unit, to three digits or so: `12.3 ms`, `98.5 %`, `1,234 tokens/s`; `–` for None."""
    if value is None or not math.isfinite(value):
        return "–"
    match axis.quantity:
        case "share":
            return f"{_three(value * 100)} %"
        case "time":
            size = abs(value)
            if 0 < size < 0.9995e-3:
                return f"{_three(value * 1e6)} µs"
            if 0 < size < 0.9995:
                return f"{_three(value * 1e3)} ms"
            return f"{_three(value)} s"
    return f"{_three(value)} {axis.unit}".rstrip()


def _three(value: float) -> str:
    size = abs(value)
    if size >= 99.95 or value == round(value):
        return f"{value:,.0f}"
    return f"{value:.3g}" if size < 1 else f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"


def _evenly(count: int, wanted: int) -> list[int]:
    if count <= wanted:
        return list(range(count))
    return [round(place * (count - 1) / (wanted - 1)) for place in range(wanted)]


def _short(values: Sequence[float | None]) -> list[float | None]:
    """Finite numbers without the digits that no figure shows; None for the others."""
    return [
        None if value is None or not math.isfinite(value) else float(f"{value:.{_DIGITS}g}")
        for value in values
    ]


def _common(x: Axis, group: str, height: int, shades: Sequence[Shade]) -> dict[str, Any]:
    return {
        "x": _axis(x),
        "group": group,
        "height": height,
        "shades": [
            {"start": start, "end": end, "label": one.label}
            for one in shades
            for start, end in [_short([one.start, one.end])]
        ],
    }


def _axis(axis: Axis) -> dict[str, Any]:
    """With ends as short as values are: an end that a value seems to pass would be moved."""
    low, high = _short([axis.low, axis.high])
    return {**msgspec.to_builtins(axis), "low": low, "high": high}
