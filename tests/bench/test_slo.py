"""What an SLO's text means, what it says of wrong texts, and how it is judged."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bench.intervals import quantile_of
from octavo.bench.slo import Measured, Part, RequestBound, Slo, label, show
from octavo.errors import InvalidParameter


@dataclass
class Made:
    """Measures that say what they are told; percentiles of `times` come from its values."""

    values: dict[str, float | None] = field(default_factory=dict)
    times: dict[str, list[float]] = field(default_factory=dict)

    def value(self, name: str) -> float | None:
        metric, _, stat = name.rpartition("_p")
        if metric in self.times:
            return self.quantile(metric, float(stat) / 100)
        return self.values.get(name)

    def quantile(self, metric: str, q: float) -> float | None:
        ordered = sorted(self.times.get(metric, []))
        return quantile_of(ordered, q) if ordered else None


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


@given(st.text(max_size=40))
def test_any_text_is_an_slo_or_an_error_of_the_caller(text: str) -> None:
    try:
        slo = Slo.parse(text)
    except InvalidParameter:
        return
    assert slo.parts and slo.text == text


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
    slo = Slo.parse("ttft<500ms,tpot<=50ms")

    def good(**values: float) -> bool:
        return slo.good(lambda bound: values.get(bound.metric))

    assert good(ttft=0.4, tpot=0.05)
    assert not good(ttft=0.5, tpot=0.05)
    assert not good(ttft=0.4, tpot=0.0501)
    assert good(ttft=0.4)  # one token: no time per further token
    with pytest.raises(ValueError):
        Slo.parse("output_rate>1").good(lambda bound: 0.0)


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
    assert str(verdict) == "output rate 80/s (bound >= 100/s)"


def test_no_value_is_not_met_and_says_so() -> None:
    verdict = Slo.parse("tpot_p50<1s").judge(Made({"error_share": 0.0}))
    assert not verdict.met
    assert verdict.worst.value is None and verdict.worst.margin is None
    assert str(verdict).startswith("TPOT p50 has no value")


def test_failed_requests_are_infinitely_late() -> None:
    good = [0.1] * 850 + [0.9] * 50
    slo = Slo.parse("ttft_p90<500ms,error_share<=20%")
    assert slo.judge(Made({"error_share": 0.0}, {"ttft": good + [0.1] * 100})).met
    # A tenth of the requests failed: among all, 85 % were within the bound, not the 94 % of those that are left.
    verdict = slo.judge(Made({"error_share": 0.1}, {"ttft": good}))
    assert not verdict.met and verdict.worst.value == pytest.approx(0.9)
    worse = Slo.parse("ttft_p95<500ms,error_share<=20%").judge(Made({"error_share": 0.1}, {"ttft": good}))
    assert worse.worst.value == math.inf
    assert str(worse) == "TTFT p95 never (bound < 500 ms): 10 % of the requests failed"


@given(st.lists(st.floats(0.001, 10.0), min_size=1, max_size=200), st.integers(0, 60))
def test_percentiles_with_failures_are_those_of_all_requests_within_one_of_them(
    times: list[float], failed: int
) -> None:
    count = len(times) + failed
    made = Made({"error_share": failed / count}, {"ttft": times})
    value = Slo.parse("ttft_p90<1s").judge(made).parts[0].value
    everyone = sorted(times) + [math.inf] * failed
    place = 0.9 * (count - 1)
    assert value is not None
    assert everyone[max(0, math.floor(place) - 1)] <= value <= everyone[min(count - 1, math.floor(place) + 1)]


def test_when_all_failed_no_bound_is_met() -> None:
    verdict = Slo.parse("ttft_p50<1s").judge(Made({"error_share": 1.0, "ttft_p50": None}))
    assert not verdict.met
    assert judged("ttft_max<1s", ttft_max=0.5)
    assert not judged("ttft_max<1s,error_share<5%", ttft_max=0.5, error_share=0.01)


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


def test_names_and_values_as_people_read_them() -> None:
    assert [
        label(name) for name in ("ttft_p99", "ttft_intended_p99_9", "normalized_mean", "output_rate")
    ] == [
        "TTFT p99",
        "TTFT intended p99.9",
        "normalized mean",
        "output rate",
    ]
    shown = [show(0.812, "time"), show(1.25, "time"), show(8e-4, "time"), show(0.0, "time")]
    assert shown == ["812 ms", "1.25 s", "800 us", "0 s"]
    assert [show(0.004, "share"), show(1234.6, "rate"), show(3, "count")] == ["0.4 %", "1235/s", "3"]
    assert show(math.inf, "time") == "never"
