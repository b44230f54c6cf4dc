"""What an SLO's text means, what it says of wrong texts, and how it is judged."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.bench.definitions import known
from octavo.bench.intervals import quantile_of
from octavo.bench.measures import measure
from octavo.bench.record import Run
from octavo.bench.slo import Measured, Part, RequestBound, Slo, show
from octavo.bench.times import Times
from octavo.bench.window import whole
from octavo.errors import InvalidParameter
from tests.bench.runs import answer, exchange, run


@dataclass
class Made:
    """Measures that say what they are told."""

    values: dict[str, float | None]

    def value(self, name: str) -> float | None:
        return self.values.get(name)

    def late(self, name: str) -> float | None:
        return self.values.get(name)


def judged(text: str, **values: float | None) -> bool:
    made: Measured = Made({"error_share": 0.0, **values})
    return Slo.parse(text).judge(made).met


@pytest.mark.parametrize(
    ("text", "name", "sign", "bound"),
    [
        ("ttft_p99<500ms", "ttft_p99", "<", 0.5),
        (" TTFT_P99 <= 1.5 s ", "ttft_p99", "<=", 1.5),
        ("itl_p99.9<800us", "itl_p99_9", "<", 8e-4),
        ("e2e_mean<2m", "e2e_mean", "<", 120.0),
        ("output_rate>1000", "output_rate", ">", 1000.0),
        ("output_rate>=1e3/s", "output_rate", ">=", 1000.0),
        ("error_share<1%", "error_share", "<", 0.01),
        ("error_share<=0", "error_share", "<=", 0.0),
        ("kv_use<.9", "kv_use", "<", 0.9),
        ("busy_share>50%", "busy_share", ">", 0.5),
        ("preemptions<=0", "preemptions", "<=", 0.0),
    ],
)
def test_a_part_is_a_name_a_sign_and_a_bound_in_base_units(
    text: str, name: str, sign: str, bound: float
) -> None:
    first = Slo.parse(text).parts[0]
    assert (first.name, first.sign, first.implied) == (name, sign, False)
    assert first.bound == pytest.approx(bound)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is empty"),
        ("ttft_p99<1s,", "a part is empty"),
        ("ttft_99<1s", "did you mean ttft_p99?"),
        ("ttft_p98<1s", "did you mean ttft_p9"),
        ("itl_p999<1s", "did you mean itl_p99"),
        ("goodputt>95%", "did you mean goodput?"),
        ("output_rate_p99>5", "did you mean output_rate?"),
        ("zzz<1s", "names are like"),
        ("lag<1s", "did you mean lag_"),  # how late the measuring process was is not the server's to keep
        ("<1s", "'nothing' is no metric"),
        ("ttft_p99", "which is no bound"),
        ("ttft_p99=1s", "which is no bound"),
        ("ttft_p99<1s<2s", "which is no bound"),
        ("ttft_p99<500", "write ttft_p99<500ms or ttft_p99<500s"),
        ("ttft_p99<5h", "'h' is no unit of time"),
        ("ttft_p99<5%", "'%' is no unit of time"),
        ("goodput>=95ms", "'ms' is no unit of a share"),
        ("goodput>=95", "write goodput>=95% if that is meant"),
        ("output_rate>5ms", "'ms' is no unit here"),
        ("preemptions<5/s", "'/s' is no unit here"),
        ("ttft_p99<-1s", "'-1s' is no number of 0 or more"),
        ("ttft_p99<soon", "write ttft_p99<500ms"),
        ("ttft_p99<nans", "is no number"),
        ("ttft_p99<1e999s", "every run meets or none can"),
        ("ttft_p99<0ms", "every run meets or none can"),
        ("goodput>100%", "every run meets or none can"),
        ("error_share<0%", "every run meets or none can"),
        ("ttft_p99>500ms", "more of it is worse; write ttft_p99<500ms"),
        ("goodput<=95%", "more of it is better; write goodput>=95%"),
        ("ttft_p99<1s,ttft_p99<2s", "has ttft_p99 twice, the second time as 'ttft_p99<2s'"),
        ("ttft<1s, ttft<2s", "has ttft twice"),
        ("goodput>=95%", "nothing says what a good request is; add one like ttft<500ms"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence_with_a_hint(text: str, said: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        Slo.parse(text)
    assert caught.value.param == "slo"
    message = str(caught.value)
    assert said in message
    assert message.startswith("slo ") and message[-1] in ".?" and "\n" not in message


@settings(deadline=None)
@given(st.text(max_size=40))
def test_any_text_is_an_slo_or_an_error_of_the_caller(text: str) -> None:
    try:
        slo = Slo.parse(text)
    except InvalidParameter:
        return
    assert slo.parts and slo.text == text


@settings(deadline=None)
@given(
    st.sampled_from(["ttft_p99", "itl_p99_9", "e2e_mean", "tpot_p50"]),
    st.sampled_from(["<", "<="]),
    st.floats(1e-6, 1e4),
)
def test_a_part_s_text_is_read_back_as_the_same(name: str, sign: str, bound: float) -> None:
    part = Part(name, "time", sign, bound)
    again = Slo.parse(str(part)).parts[0]
    assert (again.name, again.sign) == (name, sign)
    assert again.bound == pytest.approx(bound, rel=5e-3)


def test_implied_parts_say_how_many_may_fail() -> None:
    def implied(text: str) -> list[str]:
        return [str(part) for part in Slo.parse(text).parts if part.implied]

    assert implied("ttft_p50<1s") == ["error_share<=1%"]
    assert implied("output_rate>5") == ["error_share<=1%"]
    assert implied("ttft_p50<1s,error_share<5%") == []
    assert implied("ttft<1s") == ["goodput>=99%"]
    assert implied("ttft<1s,goodput>=90%") == []  # goodput counts errors


def test_each_request_s_bounds_come_from_parts_without_a_stat_and_from_the_highest_percentile() -> None:
    bounds = Slo.parse("ttft_p50<100ms,ttft_p99<=500ms,e2e_p99<9s,e2e<5s,itl_p95<50ms,tpot_mean<1s").requests
    assert set(bounds) == {
        RequestBound("e2e", "<", 5.0),
        RequestBound("ttft", "<=", 0.5),
        RequestBound("itl", "<", 0.05, share=0.95),
    }
    assert Slo.parse("itl<50ms").requests == (RequestBound("itl", "<", 0.05, share=None),)


def test_a_good_request_keeps_every_bound_that_it_has_a_value_for() -> None:
    def good(text: str, ttft_ms: float, gap_ms: float, tokens: int) -> bool:
        return Slo.parse(text).good(Times(run([answer(0, ttft_ms, gap_ms, tokens)])).of(0))

    assert good("ttft<500ms,tpot<=50ms", 400, 50, 5)
    assert not good("ttft<500ms,tpot<=50ms", 500, 50, 5)
    assert not good("ttft<500ms,tpot<=50ms", 400, 51, 5)
    assert good("ttft<500ms,tpot<=50ms", 400, 0, 1)  # one token: no time for each further token
    assert good("e2e<700ms,itl<=60ms,icl<=60ms", 400, 60, 5) and not good("e2e<700ms", 400, 75, 5)
    assert good("output_rate>1", 9999, 9999, 5)  # bounds no single request


def test_a_request_s_gaps_are_judged_as_those_of_the_run() -> None:
    gaps = [10.0] * 98 + [80.0, 80.0]
    one = exchange(0, [])
    one.chunks = list(answer(0, 0, 0, 101).chunks)
    for place, chunk in enumerate(one.chunks):
        chunk.at_us = round(1000 * sum(gaps[:place]))
    one.output_tokens, one.end_us = 101, one.chunks[-1].at_us
    times = Times(run([one])).of(0)
    assert Slo.parse("itl_p90<50ms").good(times) and Slo.parse("icl_p90<50ms").good(times)
    assert not Slo.parse("itl_p99<50ms").good(times)
    assert not Slo.parse("itl<50ms").good(times)


def test_the_bound_itself_is_met_only_with_an_equals_sign() -> None:
    assert judged("ttft_mean<=500ms", ttft_mean=0.5) and not judged("ttft_mean<500ms", ttft_mean=0.5)
    assert judged("output_rate>=10", output_rate=10.0) and not judged("output_rate>10", output_rate=10.0)


def test_each_part_must_be_met_and_says_how_far() -> None:
    slo = Slo.parse("e2e_mean<2s,output_rate>=100,error_share<=2%")
    verdict = slo.judge(Made({"e2e_mean": 1.5, "output_rate": 80.0, "error_share": 0.01}))
    assert not verdict.met
    assert [one.met for one in verdict.parts] == [True, False, True]
    assert [one.margin for one in verdict.parts] == pytest.approx([0.25, -0.2, 0.5])
    assert verdict.worst.part.name == "output_rate"
    assert str(verdict) == "Output 80/s (bound >= 100/s)"


def test_no_value_is_not_met_and_says_so() -> None:
    verdict = Slo.parse("tpot_p50<1s").judge(Made({"error_share": 0.0}))
    assert not verdict.met
    assert verdict.worst.value is None and verdict.worst.margin is None
    assert str(verdict).startswith("TPOT p50 has no value")


def served(ttfts_ms: list[float], failed: int) -> Run:
    """One request a second; those that failed come first."""
    lost = [exchange(0, [], error="timeout", output_tokens=None) for _ in range(failed)]
    done = [answer(0, ttft_ms, 10, 3) for ttft_ms in ttfts_ms]
    made = run([*lost, *done])
    for one in made.exchanges:
        later = one.index * 1_000_000
        one.intended_us, one.sent_us, one.end_us = later, later, one.end_us + later
        for chunk in one.chunks:
            chunk.at_us += later
    return made


def test_failed_requests_are_infinitely_late() -> None:
    def verdict(text: str, ttfts_ms: list[float], failed: int) -> tuple[bool, str]:
        made = served(ttfts_ms, failed)
        found = Slo.parse(text).judge(measure(made, window=whole(made)))
        return found.met, str(found)

    good = [100.0] * 850 + [900.0] * 50
    assert verdict("ttft_p90<500ms,error_share<=20%", [*good, *[100.0] * 100], 0)[0]
    # A tenth failed: among all, 85 % were within the bound, not the 94 % of those that are left.
    assert verdict("ttft_p90<500ms,error_share<=20%", good, 100) == (
        False,
        "TTFT p90 900 ms (bound < 500 ms)",
    )
    assert verdict("itl_p95<500ms,error_share<=20%", good, 100) == (
        False,
        "ITL p95 never (bound < 500 ms): 10 % of the requests failed",
    )
    assert not verdict("ttft_max<1s,error_share<5%", good, 1)[0] and verdict("ttft_max<1s", good, 0)[0]
    assert not verdict("ttft_p50<1s", [], 3)[0]


@settings(deadline=None)
@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=60), st.integers(0, 30))
def test_percentiles_with_failures_are_those_of_all_requests_within_one_of_them(
    ttfts_ms: list[int], failed: int
) -> None:
    made = served([float(one) for one in ttfts_ms], failed)
    found = measure(made, window=whole(made))
    everyone = sorted(one / 1000 for one in ttfts_ms) + [math.inf] * failed
    for stat, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0)):
        value = found.late(f"ttft_{stat}")
        place = q * (len(everyone) - 1)
        assert value is not None
        assert everyone[max(0, math.floor(place) - 1)] <= value
        assert value <= everyone[min(len(everyone) - 1, math.floor(place) + 1)]
    if not failed:
        ordered = sorted(one / 1000 for one in ttfts_ms)
        assert found.late("ttft_p90") == pytest.approx(quantile_of(ordered, 0.9))
        assert all(found.late(name) == found.value(name) for name in known())


def test_what_no_answer_has_is_not_late_because_another_request_failed() -> None:
    one_token = run([answer(0, 50, 0, 1), exchange(1000, [], error="timeout", output_tokens=None)])
    found = measure(one_token, window=whole(one_token))
    assert found.late("tpot_p50") is None and found.late("ttft_p99") == math.inf
    assert found.late("lag_p99") == found.value("lag_p99")
    assert found.late("error_share") == 0.5


def test_excess_is_below_nought_exactly_where_a_part_is_met() -> None:
    for text, good, bad in [
        ("ttft_mean<1s", 0.9, 1.1),
        ("output_rate>100", 110.0, 90.0),
        ("goodput_rate>1,ttft<1s", 1.1, 0.9),
        ("ttft<1s,goodput>=95%", 0.96, 0.9),
        ("error_share<=1%", 0.005, 0.02),
        ("error_share<=0", 0.0, 0.02),
    ]:
        part = next(one for one in Slo.parse(text).parts if not one.implied)
        assert part.excess(good) <= 0.0 < part.excess(bad)
        assert part.excess(None) == math.inf
    time = Slo.parse("ttft_mean<1s").parts[0]
    assert time.excess(1.1) == pytest.approx(-time.excess(1 / 1.1)) == pytest.approx(math.log(1.1))
    assert time.excess(0.0) == -math.inf and Slo.parse("output_rate>1").parts[0].excess(0.0) == math.inf


def test_values_as_people_read_them() -> None:
    shown = [show(0.812, "time"), show(1.25, "time"), show(8e-4, "time"), show(0.0, "time")]
    assert shown == ["812 ms", "1.25 s", "800 µs", "0 s"]
    assert [show(0.004, "share"), show(1234.6, "rate"), show(3, "count")] == ["0.4 %", "1235/s", "3"]
    assert show(math.inf, "time") == "never"
