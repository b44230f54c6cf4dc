"""What runs at one rate say, how sure they are, and when more of them are wanted."""

from __future__ import annotations

import math

import pytest

from benchmarks.queues import Said
from octavo.bench.backlog import Backlog
from octavo.bench.measures import Measures, measure
from octavo.bench.search import search
from octavo.bench.slo import Slo
from octavo.bench.trial import CAP, Trial, needs_load
from tests.bench.test_backlog import queue

SLO = Slo.parse("ttft_p99<1s,error_share<=50%")


def trial(
    *p99s: float | None, piled: tuple[float, ...] | None = None, rate: float | None = 4.0
) -> Trial[Said]:
    shares = piled or (0.0,) * len(p99s)
    return Trial.of(
        SLO,
        rate,
        [
            Said({"ttft_p99": p99, "error_share": 0.0}, Backlog(share=share, t=9.0, first=1.0, last=2.0))
            for p99, share in zip(p99s, shares, strict=True)
        ],
    )


@pytest.mark.parametrize(
    ("p99s", "decision", "settled"),
    [
        ((0.3,), "met", True),  # more than e times below
        ((0.5,), "met", False),
        ((3.0,), "not met", True),
        ((2.0,), "not met", False),
        ((0.45, 0.4), "met", True),  # twice below a half
        ((0.45, 0.9), "met", False),
        ((2.1, 2.5), "not met", True),
        ((0.9, 0.91, 0.89), "met", True),  # near, and the spread is small
        ((0.8, 0.99, 1.1), "met", False),
        ((1.1, 1.12, 1.09), "not met", True),
        ((0.8, 1.3, 1.4), "not met", False),
        ((math.inf,), "not met", True),
        ((None,), "not met", True),
    ],
)
def test_runs_decide_by_their_mean_and_are_sure_by_their_spread(
    p99s: tuple[float | None, ...], decision: str, settled: bool
) -> None:
    made = trial(*p99s)
    assert (made.decision, made.settled) == (decision, settled)
    assert (made.excess > 0.0) == (decision == "not met")


def test_the_bound_itself_is_met_with_an_equals_sign_only() -> None:
    said = [Said({"ttft_p99": 1.0, "error_share": 0.0})] * 3
    assert Trial.of(Slo.parse("ttft_p99<=1s"), 1.0, said).decision == "met"
    assert Trial.of(Slo.parse("ttft_p99<1s"), 1.0, said).decision == "not met"
    none = [Said({"ttft_p99": 0.1, "error_share": 0.0})]
    assert Trial.of(Slo.parse("ttft_p99<1s,error_share<=0"), 1.0, none).decision == "met"


def test_a_part_that_is_surely_missed_settles_it_whatever_the_others_are() -> None:
    said = Said({"ttft_p99": 9.0, "error_share": 0.45})
    made = Trial.of(SLO, 1.0, [said])
    assert made.settled and made.decision == "not met"
    assert not Trial.of(SLO, 1.0, [Said({"ttft_p99": 0.1, "error_share": 0.45})]).settled


def test_what_piled_up_once_is_no_proof_and_twice_is() -> None:
    once = trial(0.1, piled=(0.3,))
    assert (once.decision, once.settled) == ("not met", False)
    twice = trial(0.1, 0.1, piled=(0.3, 0.2))
    assert (twice.decision, twice.settled) == ("not met", True)
    assert twice.why == "the server fell behind: 25 % of the offered requests piled up"
    assert trial(0.1, 0.1, 0.1, piled=(0.12, -0.05, 0.0)).decision == "met"


def test_a_rate_that_is_met_tells_what_is_nearest_of_what_was_asked_for() -> None:
    made = trial(0.1, 0.1, piled=(0.04, 0.04))
    assert (made.decision, made.why) == ("met", "Errors 0 % (bound <= 50 %)")
    implied = Trial.of(Slo.parse("ttft_p99<1s"), 1.0, [Said({"ttft_p99": 0.1, "error_share": 0.009})])
    assert implied.why == "TTFT p99 100 ms (bound < 1 s)"
    [backlog] = [str(one) for one in made.parts if one.part.name == "backlog"]
    assert backlog == "4 % of the offered requests piled up"


def test_one_request_at_a_time_has_no_backlog() -> None:
    assert trial(0.1, piled=(0.9,), rate=None).decision == "met"


def test_a_wild_run_counts_no_more_than_ten_times_the_bound() -> None:
    [part] = [one for one in trial(1e9, 0.1).parts if one.part.name == "ttft_p99"]
    assert part.excess.estimate == pytest.approx((CAP - CAP) / 2)


def test_runs_that_are_not_valid_do_not_count() -> None:
    bad = Said({"ttft_p99": 9.0}, valid=False, problems=["It was late.", "And slow."])
    good = Said({"ttft_p99": 0.1, "error_share": 0.0})
    made = Trial.of(SLO, 1.0, [bad, good])
    assert (made.decision, len(made.outcomes), len(made.invalid)) == ("met", 1, 1)
    none = Trial.of(SLO, 1.0, [bad])
    assert (none.decision, none.settled, none.why) == ("invalid", False, "It was late; And slow")
    assert none.excess == math.inf


def test_what_needs_load_is_not_held_against_a_low_rate() -> None:
    slo = Slo.parse("output_rate>100,busy_share>50%,kv_use<90%,goodput>=95%,ttft<1s")
    assert {part.name for part in slo.parts if needs_load(part)} == {"output_rate", "busy_share"}
    low = Said({"output_rate": 5.0, "busy_share": 0.1, "kv_use": 0.1, "goodput": 1.0})
    made = Trial.of(slo, 1.0, [low])
    assert made.decision == "met" and {one.part.name for one in made.missed} == {"output_rate", "busy_share"}


def test_a_metric_s_interval_is_over_the_runs_that_have_it() -> None:
    made = trial(0.2, 0.4, None)
    found = made.interval("ttft_p99")
    assert found is not None and found.estimate == pytest.approx(0.3) and found.low < 0.2
    assert made.interval("kv_use") is None


async def test_a_search_on_raw_events_finds_what_a_queue_can_do() -> None:
    # M/M/1 event by event, through runs and measures. A service takes a second, so that the p99 of the time in the
    # system, ln 100 / (1 - rate), is 9.2 s at half of the capacity.
    async def run_at(rate: float, seed: int) -> Measures:
        return measure(queue(rate, 1500, 1, spread=1.0, seed=seed))

    found = await search(run_at, Slo.parse(f"e2e_p99<{2 * math.log(100)!r}s"), start=0.1)
    assert found.best is not None and found.best.rate is not None and found.rate is not None
    assert found.best.rate == pytest.approx(0.5, rel=0.15)
    assert 0.5 in found.rate
