"""A comparison as values, on a terminal and as a page: the same verdict, and no name that breaks it."""

from __future__ import annotations

import io

import orjson
from rich.console import Console

from octavo.bench.compare import Comparison, compare
from octavo.bench.compare_page import change_of, compare_page, plain_comparison
from octavo.bench.record import Record
from octavo.bench.summary import print_comparison
from tests.bench.synthetic import synthetic_record, synthetic_run
from tests.charts.reading import read


def _slower(record: Record, by_us: int) -> Record:
    for run in record.runs:
        for one in run.exchanges:
            one.end_us += by_us
            for chunk in one.chunks:
                chunk.at_us += by_us
    return record


def _record(*rates: float, seeds: tuple[int, ...] = (1, 2, 3, 4, 5)) -> Record:
    return synthetic_record(*(synthetic_run(rate, seed=seed) for rate in rates for seed in seeds))


def _printed(comparison: Comparison) -> list[str]:
    file = io.StringIO()
    print_comparison(
        comparison, ("a.json", "b.json"), Console(file=file, width=80, highlight=False, markup=False)
    )
    return file.getvalue().splitlines()


def test_a_regression_is_red_and_named_everywhere() -> None:
    a, b = _record(4.0), _slower(_record(4.0), 40_000)
    comparison = compare(a, b)
    assert comparison.regression
    tree = read(compare_page(comparison, a, b, ("x/a.json", "b.json")).html())
    assert tree.one("title").text == "a.json and b.json"
    note = tree.one("div", class_="note bad")
    assert note.text == str(comparison)
    rows = {row[0]: row for row in tree.table("A is x/a.json, B is b.json")}
    assert rows["TTFT p50"][-1] == "worse" and rows["TPOT p50"][-1] == "same"
    [ttft] = [one for one in comparison.rows if one.name == "ttft_p50"]
    assert rows["TTFT p50"][4] == change_of(ttft)
    lines = _printed(comparison)
    assert max(map(len, lines)) <= 80 and not [line for line in lines if "…" in line]
    assert lines[0].startswith("Regression: TTFT p50 at 4 requests/s is")
    [row] = [line for line in lines if line.startswith("TTFT p50  ")]
    assert row.split()[-1] == "worse" and change_of(ttft) in row
    value = plain_comparison(comparison)
    assert orjson.loads(orjson.dumps(value))["regression"] is True
    [one] = [one for one in value["values"] if one["name"] == "ttft_p50"]
    assert one["word"] == "worse" and one["interval"][0] > 0.3


def test_both_distributions_are_in_one_figure() -> None:
    a, b = _record(4.0), _slower(_record(4.0), 40_000)
    figures = read(compare_page(compare(a, b), a, b, ("a", "b")).html()).figures()
    assert len(figures) == 3
    for figure in figures:
        assert [series["name"] for series in figure["series"]] == ["A", "B"]
    first, second = (series["x"] for series in figures[0]["series"])
    assert second[0] == round(first[0] + 0.04, 7)


def test_equal_records_are_the_same() -> None:
    a = _record(4.0)
    comparison = compare(a, a)
    assert comparison.regression is False
    tree = read(compare_page(comparison, a, a, ("a", "a")).html())
    assert tree.one("div", class_="note good").text == str(comparison)


def test_single_runs_and_several_loads_fit_too() -> None:
    a = _record(4.0, 6.0, seeds=(1,))
    comparison = compare(a, a)
    assert comparison.regression is None
    lines = _printed(comparison)
    assert max(map(len, lines)) <= 80 and not [line for line in lines if "…" in line]
    assert any(line.startswith("TTFT p99") and "6 requests/s" in line for line in lines)
    assert read(compare_page(comparison, a, a, ("<a>", "b")).html()).one("title").text == "<a> and b"
    orjson.dumps(plain_comparison(comparison))
