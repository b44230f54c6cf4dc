"""Figures: what they refuse, what they tell the page's script, what their tables say."""

from __future__ import annotations

import math

import msgspec
import pytest

from octavo.charts.figure import MAX_ROWS, Axis, Bound, Figure, Lanes, Series, Shade, shown

TIME = Axis(label="time", quantity="time")


@pytest.mark.parametrize(
    ("value", "axis", "text"),
    [
        (0.0000123, TIME, "12.3 µs"),
        (0.0009996, TIME, "1 ms"),
        (0.0123456, TIME, "12.3 ms"),
        (0.4567, TIME, "457 ms"),
        (0.99951, TIME, "1 s"),
        (12.3456, TIME, "12.3 s"),
        (1234.5, TIME, "1,234 s"),
        (0.0, TIME, "0 s"),
        (0.98765, Axis(label="", quantity="share"), "98.8 %"),
        (1.0, Axis(label="", quantity="share"), "100 %"),
        (0.001234, Axis(label="", quantity="share"), "0.123 %"),
        (1234.4, Axis(label="", unit="tokens/s"), "1,234 tokens/s"),
        (3.14159, Axis(label="", unit="requests/s"), "3.14 requests/s"),
        (7, Axis(label=""), "7"),
        (None, TIME, "–"),
        (math.nan, TIME, "–"),
        (math.inf, TIME, "–"),
    ],
)
def test_values_are_shown_to_three_digits_with_their_unit(value: float, axis: Axis, text: str) -> None:
    assert shown(value, axis) == text


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="x has 2 values"):
        Series(name="a", x=[1, 2], y=[1])
    with pytest.raises(ValueError, match="a low and a high end"):
        Series(name="a", x=[1], y=[1], low=[0])
    with pytest.raises(ValueError, match="must grow"):
        Series(name="a", x=[1, 1], y=[1, 2])
    assert Series(name="a", kind="points", x=[1, 1], y=[1, 2]).x == [1, 1]
    with pytest.raises(ValueError, match="a lane, a start"):
        Lanes(title="", x=TIME, classes=[], names=[], lane=[0], start=[0], end=[], of=[0])


def _figure(*series: Series) -> Figure:
    return Figure(title="f", x=TIME, y=Axis(label="y"), series=series)


def test_the_script_gets_finite_numbers_and_a_colour_for_each_series() -> None:
    many = [Series(name=str(n), x=[0.123456789], y=[math.nan]) for n in range(10)]
    spec = msgspec.json.decode(msgspec.json.encode(_figure(*many).spec()))
    assert [one["colour"] for one in spec["series"]] == [1, 2, 3, 4, 5, 6, 7, 8, 1, 2]
    assert [one["dashed"] for one in spec["series"]] == [False] * 8 + [True] * 2
    assert spec["series"][0]["x"] == [0.1234568] and spec["series"][0]["y"] == [None]


def test_bounds_and_shades_are_told() -> None:
    figure = Figure(
        title="f",
        x=TIME,
        y=Axis(label="y", log=True),
        series=[],
        bounds=[Bound(at=0.5, label="p99 < 500 ms")],
        shades=[Shade(start=0, end=2, label="warm-up")],
        group="t",
    )
    spec = figure.spec()
    assert spec["bounds"] == [{"at": 0.5, "label": "p99 < 500 ms", "axis": "y"}]
    assert spec["shades"] == [{"start": 0, "end": 2, "label": "warm-up"}]
    assert spec["y"]["log"] and spec["group"] == "t"


def test_the_table_has_few_rows_with_both_ends() -> None:
    long = list(range(1000))
    head, rows = _figure(
        Series(name="a", x=long, y=long), Series(name="b", x=[5], y=[6], low=[4], high=[None])
    ).rows()
    assert head == ["series", "time", "y", "from", "to"]
    assert len(rows) <= MAX_ROWS + 1
    assert rows[0] == ["a", "0 s", "0", "–", "–"] and ["a", "999 s", "999", "–", "–"] in rows
    assert rows[-1] == ["b", "5 s", "6", "4", "–"]


def test_the_table_of_lanes_sums_each_class() -> None:
    lanes = Lanes(
        title="l",
        x=TIME,
        classes=[("wait", 2), ("answer", 1), ("none", 8)],
        names=["one", "two"],
        lane=[0, 0, 1],
        start=[0, 1, 2],
        end=[1, 3, 6],
        of=[0, 1, 1],
    )
    head, rows = lanes.rows()
    assert head == ["class", "spans", "mean", "longest"]
    assert rows == [["wait", "1", "1 s", "1 s"], ["answer", "2", "3 s", "4 s"], ["none", "0", "–", "–"]]
    assert lanes.spec()["classes"][0] == {"name": "wait", "colour": 2}
