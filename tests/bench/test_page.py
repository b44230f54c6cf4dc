"""The report's page: its numbers are the measures', its words are the definitions', and nothing breaks it."""

from __future__ import annotations

import shlex

import pytest

from octavo.bench.cost import Cost
from octavo.bench.definitions import DEFINITIONS
from octavo.bench.page import page, reproduce
from octavo.bench.report import report
from octavo.bench.shown import label_of, show
from octavo.bench.slo import Slo
from tests.bench.runs import answer, run
from tests.bench.synthetic import synthetic_record, synthetic_run
from tests.charts.reading import read

HOSTILE = "</script><b onclick=x>&"


def _sweep() -> str:
    runs = [synthetic_run(rate, seed=seed, fail_every=140) for rate in (2.0, 4.0, 14.0) for seed in (1, 2)]
    made = report(synthetic_record(*runs), slo=Slo.parse("ttft_p99<400ms"), cost=Cost(price_per_hour=1.0))
    return page(made).html()


def test_a_run_s_page_has_its_numbers() -> None:
    made = report(synthetic_record(synthetic_run(4.0, fail_every=50)))
    tree = read(page(made).html())
    rows = {row[0]: row for row in tree.table("Latencies at 4 requests/s")}
    [point] = made.points
    assert rows["TTFT"][6] == show("ttft", point.value("ttft_p99"))
    assert rows["TPOT/token"][1] == show("tpot", point.value("tpot_mean"))
    load = dict(tree.table("Load and answers")[1:])
    assert load[label_of("output_rate")] == show("output_rate", point.value("output_rate"))
    assert tree.table("In the measured time")[1][:3] == ["cut", "200", "2"]
    assert [row[0] for row in tree.table("Tenants")[1:]] == ["nightly", "web"]
    assert [one.text for one in tree.one("nav").all("a")] == [
        "Latency",
        "Throughput",
        "Timeline",
        "Errors",
        "Groups",
        "How it was measured",
        "Definitions",
    ]
    tiles = dict(
        zip((one.text for one in tree.one("dl", class_="facts").all("dt")), _values(tree), strict=True)
    )
    assert tiles["TTFT p99"] == show("ttft", point.value("ttft_p99"))


def _values(tree: object) -> list[str]:
    return [one.text for one in tree.one("dl", class_="facts").all("b")]  # type: ignore[attr-defined]


def test_every_definition_is_on_the_page() -> None:
    terms = read(page(report(synthetic_record())).html()).one("dl", class_="terms")
    names = [one.text for one in terms.all("dt")]
    assert names == [f"{one.label} ({one.name})" for one in DEFINITIONS]
    for one in DEFINITIONS:
        assert one.words in terms.text and one.formula in terms.text and one.source in terms.text


def test_it_says_what_is_not_measured_and_how_to_do_it_again() -> None:
    made = report(synthetic_record())
    text = read(page(made).html()).text
    assert "without" in made.points[0].measures[0].window.rule
    assert made.points[0].measures[0].window.rule in text
    assert "octavo bench http://127.0.0.1:8000/v1 --workload chat --rate 4.0 --requests 150" in text


def test_what_the_server_takes_is_told() -> None:
    record = synthetic_record()
    asked = {"prompts": "ids", "takes": ["ignore_eos"], "notes": ["The server refuses min_tokens."]}
    record.options["target"] = asked
    text = read(page(report(record)).html()).text
    assert "token ids" in text and "ignore_eos" in text and "The server refuses min_tokens." in text
    assert "--target" not in text


def test_a_sweep_s_page_has_curves_with_intervals_and_the_bound() -> None:
    tree = read(_sweep())
    ttft = next(one for one in tree.figures() if any(s["name"] == "TTFT p99" for s in one.get("series", ())))
    assert [bound["label"] for bound in ttft["bounds"]] == ["ttft_p99<400ms"]
    for series in ttft["series"]:
        assert series["x"] == [2.0, 4.0, 14.0]
        ends = zip(series["low"], series["y"], series["high"], strict=True)
        assert all(low < value < high for low, value, high in ends)
    loads = tree.table("Each load")
    assert [row[0] for row in loads[1:]] == ["2 requests/s", "4 requests/s", "14 requests/s"]
    assert [row[-1] for row in loads[1:]] == ["yes", "yes", "no"]
    [verdict] = tree.all("div", class_="note good")
    assert verdict.text.startswith("4 a second meet ttft_p99<400ms") and "14 do not" in verdict.text
    assert tree.table("How it is computed")[1][0] == "cost"


def test_distributions_grow_and_equal_ones_are_one_curve() -> None:
    tree = read(page(report(synthetic_record())).html())
    drawn = [one for one in tree.figures() if one["kind"] == "series" and one["y"]["quantity"] == "share"]
    first = next(one for one in drawn if one["series"][0]["name"].startswith("TTFT"))
    assert [series["name"] for series in first["series"]] == ["TTFT = TTFA", "TTFT from arrival", "TTFS"]
    for series in first["series"]:
        assert series["x"] == sorted(series["x"]) and series["y"] == sorted(series["y"])
        assert series["y"][-1] == 1.0 and series["x"][0] > 0


def test_an_invalid_run_says_so_first() -> None:
    late = [
        answer(place * 20, 50, 10, 5, started_ms=place * 20 + 400, sent_ms=place * 20 + 400)
        for place in range(200)
    ]
    tree = read(page(report(synthetic_record(run(late)))).html())
    note = tree.one("main").children[0]
    assert not isinstance(note, str) and note.attributes["class"] == "note bad"
    assert "Not valid: the numbers" in note.text and "Requests were sent late" in note.text


def test_hostile_names_stay_text() -> None:
    made = run([answer(place * 100, 20, 10, 4, tenant=HOSTILE) for place in range(30)])
    made.exchanges[12].error, made.exchanges[12].message = "status", HOSTILE
    record = synthetic_record(made, name=HOSTILE, model=HOSTILE)
    record.server, record.machine, record.workload = HOSTILE, {HOSTILE: HOSTILE}, {HOSTILE: [HOSTILE]}
    tree = read(page(report(record)).html())
    assert tree.one("title").text == f"{HOSTILE} on {HOSTILE.partition('/')[2]}", "a path's last part"
    assert not [one for one in tree.all("b") if "onclick" in one.attributes]
    assert tree.table("Tenants")[1][0] == HOSTILE
    assert HOSTILE in tree.figures()[-1].get("names", [HOSTILE])[0]


def test_equal_records_are_equal_pages_of_a_fair_size() -> None:
    long = synthetic_record(synthetic_run(20.0, requests=3000, places=64))
    first, again = page(report(long)).html(), page(report(long)).html()
    assert first == again
    assert len(first.encode()) < 400_000


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"rate": 2.5, "no_metrics": True, "insecure": False, "api": None}, "--rate 2.5 --no-metrics"),
        ({"header": ["A: b", "C: d'e"]}, shlex.join(["--header", "A: b", "--header", "C: d'e"])),
    ],
)
def test_the_command_line_is_quoted(options: dict[str, object], line: str) -> None:
    assert (
        reproduce(options, "http://h/v1", "a b.toml")
        == f"octavo bench http://h/v1 --workload 'a b.toml' {line}"
    )
