"""Numbers of runs that are written by hand, each computed by hand beside it."""

from __future__ import annotations

import random

import msgspec
import pytest

from octavo.bench.measures import Measures, measure
from octavo.bench.record import Exchange
from octavo.bench.slo import Slo
from octavo.bench.times import Times
from octavo.bench.window import whole
from octavo.errors import InvalidParameter
from tests.bench.runs import answer, event, exchange, run


def test_even_answers_have_even_numbers() -> None:
    # One every 100 ms for 20 s: TTFT 50 ms, then four tokens more, 10 ms apart.
    even = run([answer(place * 100, 50, 10, 5) for place in range(200)])
    found = measure(even)
    assert found.valid
    assert found.problems == []
    # A tenth of 19.9 s is warm-up; the last session begins after 19.9 s.
    assert (found.window.start_us, found.window.end_us) == (1_990_000, 19_900_000)
    assert found.value("requests") == 179
    assert found.value("ttft_p99") == 0.05
    assert found.value("ttft_mean") == 0.05
    assert found.value("tpot_p50") == 0.01
    assert found.value("itl_max") == 0.01
    assert found.value("icl_p50") == 0.01
    assert found.value("e2e_p90") == 0.09
    assert found.value("normalized_mean") == 0.018
    assert found.value("goodput") == 1.0
    assert found.value("offered_rate") == pytest.approx(179 / 17.91)


def test_measures_are_read_as_they_were_written() -> None:
    found = measure(run([answer(place * 100, 50, 10, 5, tenant="a") for place in range(50)]))
    assert msgspec.json.decode(msgspec.json.encode(found), type=Measures) == found


def test_a_name_that_there_is_not_is_told() -> None:
    found = measure(run([]))
    assert found.value("ttft_p99") is None
    with pytest.raises(InvalidParameter, match=r"ttft_p98 is no metric; did you mean ttft_p9"):
        found.value("ttft_p98")
    with pytest.raises(InvalidParameter, match=r"ttft is a distribution; say which value of it: ttft_mean"):
        found.value("ttft")


def test_one_failed_request_has_no_times() -> None:
    refused = exchange(0, [], error="connect", sent_us=None, status=None, output_tokens=None)
    failed = run([refused])
    found = measure(failed, window=whole(failed))
    assert (found.value("requests"), found.value("goodput"), found.value("error_share")) == (1, 0, 1)
    assert found.value("ttft_p50") is None
    assert [(one.error, one.count) for one in found.errors] == [("connect", 1)]


@pytest.mark.parametrize(
    "text",
    [
        "ttft<60ms",
        "itl_p99<21ms",
        "itl_p50<=10ms,ttft_p90<1s",
        "icl<20ms",
        "tpot<15ms,goodput>=10%",
        "itl<1us",
    ],
)
def test_goodness_of_all_is_that_of_each(text: str) -> None:
    draws = random.Random(3)
    exchanges = [_random_exchange(draws, place) for place in range(120)]
    whole_run, slo = run(exchanges), Slo.parse(text)
    window, times = whole(whole_run), Times(whole_run)
    each = [times.ok[place] and slo.good(times.of(place)) for place in range(120)]
    found = measure(whole_run, window=window, slo=slo)
    assert found.all.good == sum(each)
    assert found.value("goodput") == sum(each) / 120
    assert found.value("goodput_rate") == pytest.approx(sum(each) / window.length_s)
    assert 0 < sum(each) < times.ok.sum()


def _random_exchange(draws: random.Random, place: int) -> Exchange:
    at = place * 10.0 + draws.randint(5, 90)
    chunks = []
    for _ in range(draws.randint(1, 6)):
        chunks.append(event(at, tokens=draws.choice([0, 1, 1, 1, 3])))
        at += draws.randint(0, 30)
    return exchange(place * 10, chunks, error=draws.choice([None, None, None, "cut"]))
