"""What counts as help: better than before by more than chance, and nothing else much worse."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.bench.slo import Slo
from octavo.planning.rehearsal import Rehearsed
from octavo.planning.remedies import Check, Remedy, best_of, judged

BEFORE: dict[str, float | None] = {
    "ttft_p50": 1.0,
    "ttft_p95": 4.0,
    "tpot_p50": 0.02,
    "itl_p99": 0.1,
    "e2e_p95": 6.0,
    "output_rate": 100.0,
}


def remedy(
    knob: str = "sequences at once",
    *,
    off: dict[str, float] | None = None,
    slo: Slo | None = None,
    **values: Any,
) -> Remedy:
    after = Rehearsed(values=BEFORE | values, lates={"error_share": 0.0, **BEFORE, **values})
    pairs = [(Rehearsed(values=BEFORE), after)]
    return judged(Remedy(knob=knob, value="8", option="--max-running 8"), off or {}, pairs, slo)


def test_a_gain_counts_where_it_is_more_than_a_tenth_and_than_the_doubt() -> None:
    assert remedy(ttft_p95=3.0).better == ["ttft_p95"]
    assert not remedy(ttft_p95=3.8).better
    assert not remedy(ttft_p95=3.0, off={"ttft_p95": 0.9}).better
    assert remedy(output_rate=120.0).better == ["output_rate"] and remedy(output_rate=80.0).worse == [
        "output_rate"
    ]


def test_a_price_is_paid_only_where_answers_are_whole_sooner() -> None:
    assert not remedy(ttft_p95=1.0, tpot_p50=0.03).helps
    won = remedy(ttft_p50=0.1, ttft_p95=1.0, tpot_p50=0.03, e2e_p95=3.0)
    assert won.helps and won.worse == ["tpot_p50"]
    assert not remedy(ttft_p50=0.1, ttft_p95=1.0, tpot_p50=0.06, e2e_p95=3.0).helps


def test_ranges_are_wider_where_the_simulation_is_off_and_put_right_by_it() -> None:
    effect = remedy(ttft_p95=1.0, off={"ttft_p95": 0.25}).effects["ttft_p95"]
    assert effect.value == pytest.approx(0.8) and effect.ratio == pytest.approx(0.25)
    assert effect.low == pytest.approx(0.64) and effect.high == pytest.approx(1.0)


def test_a_second_server_comes_last_and_a_target_first() -> None:
    slo = Slo.parse("ttft_p95<500ms")
    bought, small = remedy("servers", ttft_p95=0.1, e2e_p95=1.0), remedy(ttft_p95=3.0)
    assert best_of([bought, small], None) is small and best_of([bought], None) is bought
    meets = remedy(ttft_p95=0.1, output_rate=70.0, slo=slo)
    assert meets.meets and not meets.helps
    assert best_of([remedy(ttft_p95=1.0, slo=slo), meets], slo) is meets
    assert best_of([remedy()], None) is None


def test_what_is_too_far_off() -> None:
    assert Check(name="tpot_mean", seen=0.02, simulated=0.03).far
    assert not Check(name="tpot_mean", seen=0.02, simulated=0.024).far
    assert not Check(name="ttft_mean", seen=0.02, simulated=0.06).far  # milliseconds
    assert (
        Check(name="ttft_mean", seen=1.0, simulated=2.1).far
        and Check(name="ttft_mean", seen=1.0, simulated=0.4).far
    )
    assert not Check(name="server_running", seen=1.0, simulated=9.0).far
    assert Check(name="ttft_mean", seen=None, simulated=9.0).off is None
