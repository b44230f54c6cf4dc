"""A report as values: what JSON can hold, with the report's numbers."""

from __future__ import annotations

import math

import orjson
import pytest

from octavo.bench.compat import recompute
from octavo.bench.cost import Cost
from octavo.bench.plain import plain_report
from octavo.bench.report import report
from octavo.bench.slo import Slo
from tests.bench.synthetic import synthetic_record, synthetic_run


def test_every_number_is_there_and_can_be_written() -> None:
    runs = [synthetic_run(rate, seed=seed, fail_every=90) for rate in (2.0, 12.0) for seed in (1, 2)]
    made = report(synthetic_record(*runs), slo=Slo.parse("ttft_p99<300ms"), cost=Cost(price_per_hour=1.0))
    value = orjson.loads(orjson.dumps(plain_report(made, [recompute(runs[0], "aiperf")])))
    low, high = value["points"]
    assert (low["rate"], high["rate"]) == (2.0, 12.0)
    assert low["values"]["ttft_p99"] == made.points[0].value("ttft_p99")
    interval = made.points[0].interval("ttft_p99")
    assert interval is not None and low["intervals"]["ttft_p99"] == [interval.low, interval.high]
    assert [one["seed"] for one in low["runs"]] == [1, 2] and low["runs"][0]["run"] == 0
    assert {"target": "ttft_p99<300ms", "met": True}.items() <= low["judged"][0].items()
    assert low["met"] is True and high["met"] is False and value["chosen"] == 0
    assert value["highest_rate"]["rate"] == 2.0 and value["highest_rate"]["not_met_at"] == 12.0
    assert value["cost"]["per_hour"] == 1.0
    assert value["compat"][0]["tool"] == "aiperf" and value["compat"][0]["values"]
    assert high["runs"][0]["errors"][0]["error"] == "cut"


def test_what_is_not_known_is_left_out_or_null() -> None:
    run = synthetic_run(4.0)
    run.server = []
    value = plain_report(report(synthetic_record(run)))
    [point] = value["points"]
    assert "kv_use" not in point["values"] and point["intervals"] == {} and point["judged"] == []
    assert value["slo"] is value["met"] is value["cost"] is value["outcome"] is value["highest_rate"] is None
    assert all(math.isfinite(one) for one in point["values"].values())


@pytest.mark.parametrize("valid", [True, False])
def test_validity_is_told(valid: bool) -> None:
    run = synthetic_run(4.0)
    if not valid:
        for one in run.exchanges:
            one.started_us = one.sent_us = one.intended_us + 50_000
    value = plain_report(report(synthetic_record(run)))
    assert value["valid"] is valid and value["points"][0]["valid"] is valid
    assert any("sent late" in problem for problem in value["problems"]) is not valid
