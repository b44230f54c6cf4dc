"""Reports: runs by their load, means over them, and what stands for the whole."""

from __future__ import annotations

import io
import statistics

import pytest
from rich.console import Console

from octavo.bench.cost import Cost
from octavo.bench.measures import measure
from octavo.bench.plain import plain_report
from octavo.bench.report import report
from octavo.bench.slo import Slo
from octavo.bench.summary import print_summary
from octavo.errors import BenchError, InvalidParameter
from tests.bench.runs import run
from tests.bench.synthetic import synthetic_record, synthetic_run


def test_runs_with_one_load_are_one_point_and_points_go_up() -> None:
    record = synthetic_record(
        synthetic_run(6.0, seed=1), synthetic_run(2.0, seed=1), synthetic_run(6.0, seed=2)
    )
    made = report(record)
    assert [(point.rate, point.runs) for point in made.points] == [(2.0, (1,)), (6.0, (0, 2))]
    low, high = made.points
    wanted = statistics.fmean(measure(record.runs[place]).value("output_rate") or 0.0 for place in (0, 2))
    assert high.value("output_rate") == pytest.approx(wanted)
    interval = high.interval("output_rate")
    assert interval is not None and interval.low < wanted < interval.high
    assert low.interval("output_rate") is None
    assert made.chosen is low and made.outcome is None


def test_an_interval_is_cut_to_what_the_value_can_be() -> None:
    made = report(synthetic_record(synthetic_run(8.0, seed=1), synthetic_run(8.0, seed=2)))
    [point] = made.points
    waiting, goodput = point.interval("server_waiting"), point.interval("goodput")
    assert waiting is not None and waiting.low == 0.0 and goodput is not None and goodput.high == 1.0


def test_the_highest_load_that_meets_the_target_stands_for_all() -> None:
    record = synthetic_record(*(synthetic_run(rate) for rate in (2.0, 3.0, 12.0)))
    made = report(record, slo=Slo.parse("ttft_p99<200ms"))
    assert [point.met for point in made.points] == [True, True, False]
    assert made.chosen.rate == 3.0 and made.chosen_run is record.runs[1]
    assert (made.outcome or "").startswith("3 a second meet ttft_p99<200ms")
    assert "12 do not: TTFT p99" in (made.outcome or "") and "used up" not in (made.outcome or "")
    none = report(record, slo=Slo.parse("ttft_p99<1ms"))
    assert none.chosen.rate == 2.0 and (none.outcome or "").startswith(
        "No rate that was tried meets ttft_p99<1ms"
    )
    one = report(synthetic_record(), slo=Slo.parse("e2e_p50<1ms"))
    assert (one.outcome or "").startswith("e2e_p50<1ms is not met: E2E p50")


def test_goodput_is_by_the_target() -> None:
    record = synthetic_record()
    all_good = report(record).chosen.value("goodput")
    none_good = report(record, slo=Slo.parse("ttft<1ms")).chosen.value("goodput")
    assert all_good == 1.0 and none_good == 0.0


def test_another_warm_up_is_another_window() -> None:
    record = synthetic_record()
    assert report(record, warmup_s=10.0).chosen.measures[0].window.start_us == 10_000_000
    with pytest.raises(InvalidParameter, match=r"The warm-up is 1e\+06 s"):
        report(record, warmup_s=1e6)


def test_prices_make_a_bill_of_the_chosen_load() -> None:
    made = report(synthetic_record(), cost=Cost(price_per_hour=3.6))
    output = made.chosen.value("output_rate")
    assert made.bill is not None and output is not None
    assert made.bill.per_million_output == pytest.approx(3.6 / 3600 / output * 1e6)
    assert report(synthetic_record()).bill is None


def test_nothing_is_reported_of_nothing() -> None:
    with pytest.raises(BenchError, match="no request"):
        report(synthetic_record(run([])))


def test_closed_loops_are_judged_by_their_clients() -> None:
    runs = [synthetic_run(rate) for rate in (2.0, 12.0)]
    for clients, run_ in zip((1, 8), runs, strict=True):
        run_.rate, run_.clients = None, clients
    made = report(synthetic_record(*runs), slo=Slo.parse("ttft_p99<300ms"))
    assert [point.met for point in made.points] == [True, False] and made.found is None
    assert made.outcome == "1 client is the highest load that was tried and meets ttft_p99<300ms."
    worse = report(synthetic_record(*runs), slo=Slo.parse("ttft_p99<1ms"))
    assert (worse.outcome or "").startswith(
        "No load that was tried meets ttft_p99<1ms; at 1 client: TTFT p99"
    )


@pytest.mark.parametrize("late", [0, 1, 2])
def test_the_table_the_sentence_and_the_verdict_say_the_same(late: int) -> None:
    """One of three loads is not valid: it is not judged, and no other is judged by its problems."""
    record = synthetic_record(*(synthetic_run(rate) for rate in (2.0, 3.0, 4.0)))
    for one in record.runs[late].exchanges:
        one.started_us = one.intended_us + 5_000_000
        if one.sent_us is not None:
            one.sent_us += 5_000_000
    for slo, met in (("ttft_p99<9s", True), ("ttft_p99<1us", False)):
        made = report(record, slo=Slo.parse(slo))
        assert [point.met for point in made.points] == [None if at == late else met for at in range(3)]
        assert made.chosen.met is met and made.valid
        assert ("No rate" in (made.outcome or "")) is not met
        assert "sent late" not in (made.outcome or "") or (met and late == 2)
        table = plain_report(made)
        assert table["met"] is met and [point["met"] for point in table["points"]][late] is None
        console = Console(file=io.StringIO(), width=100)
        print_summary(made, console)
        assert isinstance(console.file, io.StringIO)
        rows = [
            line
            for line in console.file.getvalue().splitlines()
            if line.startswith(f"{late + 2:d} requests/s")
        ]
        assert rows[0].split()[-1] == "?"


def test_the_same_problem_of_several_runs_is_told_once_with_its_runs_and_load() -> None:
    few = [synthetic_run(4.0, requests=count, seed=count) for count in (40, 50)]
    [only] = report(synthetic_record(*few)).points
    [told] = [problem for problem in only.problems if problem.startswith("Only ")]
    assert told.endswith(" (run 1; so in 2 of 2 runs)")
    one = report(synthetic_record(few[0]))
    assert one.problems == one.chosen.measures[0].problems
    several = report(synthetic_record(few[0], synthetic_run(9.0, requests=40)))
    assert several.problems and all(problem.startswith("4 requests/s: ") for problem in several.problems)
