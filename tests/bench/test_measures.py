"""Numbers of runs that are written by hand, each computed by hand beside it."""

from __future__ import annotations

import itertools
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bench.measures import Group, Measures, measure
from octavo.bench.record import Exchange, Kind, Run, ServerSample
from octavo.bench.slo import Slo
from octavo.bench.times import Times
from octavo.bench.window import Window, whole
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


def test_an_answer_without_text_is_not_a_good_one_where_a_first_token_is_asked_for() -> None:
    empty = exchange(0, [event(10, 1, Kind.EMPTY)])
    both = run([empty, answer(10, 50, 10, 5)])
    goodput = {text: measure(both, slo=Slo.parse(text)).value("goodput") for text in ("ttft<1s", "tpot<1s")}
    assert goodput == {"ttft<1s": 0.5, "tpot<1s": 1.0}


def test_rates_are_of_what_came_in_the_window() -> None:
    # From 1,000 to before 3,000 ms, which is 2 s. In it:
    exchanges = [
        answer(
            100, 700, 200, 3, input_tokens=1000, wanted_input=1
        ),  # tokens at 800, 1,000, 1,200; prompt before
        answer(1500, 100, 100, 4, input_tokens=30, wanted_input=1),  # 1,600 to 1,900
        answer(2000, 500, 500, 3, input_tokens=None, wanted_input=50),  # 2,500, 3,000, 3,500: ends after
        answer(2900, 200, 100, 2, input_tokens=7000),  # 3,100: prompt after
        exchange(1200, [event(1300, 9)], error="cut", input_tokens=500),
    ]
    found = measure(run(exchanges), window=Window(start_us=1_000_000, end_us=3_000_000, rule="by hand"))
    assert found.value("requests") == 4
    assert found.value("offered_rate") == 2.0
    assert found.value("request_rate") == 1.0  # the ones that ended at 1,200 and 1,900
    assert found.value("output_rate") == (2 + 4 + 1) / 2
    assert found.value("input_rate") == (30 + 50) / 2
    assert found.value("total_rate") == 43.5
    assert found.value("error_share") == 0.25
    assert found.value("goodput") == 0.75
    assert found.value("goodput_rate") == 1.5
    # In flight: 1,000 to 1,200; 1,500 to 1,900; 2,000 to 3,000; 2,900 to 3,000; 1,200 to 1,300.
    assert found.value("concurrency") == pytest.approx((200 + 400 + 1000 + 100 + 100) / 2000)
    assert found.value("concurrency_max") == 2
    # TTFT of those meant for the window: 100, 500, 200.
    assert found.value("ttft_mean") == pytest.approx(0.8 / 3)
    assert found.value("ttft_p50") == 0.2


def test_one_that_ends_as_the_next_is_sent_is_not_beside_it() -> None:
    chain = [answer(100 * place, 50, 50, 2) for place in range(30)]
    found = measure(run(chain))
    assert found.value("concurrency_max") == 1
    assert found.value("concurrency") == pytest.approx(1.0)


def test_a_count_without_events_of_its_own_came_with_the_end() -> None:
    window = Window(start_us=0, end_us=1_000_000, rule="by hand")
    inside = exchange(0, [event(100, 0)], end_ms=900, output_tokens=40, counted="none")
    after = exchange(0, [event(100, 0)], end_ms=1000, output_tokens=40, counted="none")
    assert measure(run([inside, after]), window=window).value("output_rate") == 40
    unknown = exchange(0, [event(100, 0)], output_tokens=None, counted="none", wanted_output=5)
    found = measure(run([unknown]), window=window)
    assert found.value("output_rate") is None
    assert found.value("total_rate") is None
    assert found.value("short_share") is None
    assert found.value("ttft_p50") == 0.1


def test_a_stall_is_seen_from_the_intended_arrival() -> None:
    # The server answers nothing for 5 s, and a client with one connection sends what it should have sent meanwhile
    # one after another when that is over: each takes 50 ms from its sending.
    exchanges = []
    free = 0.0
    for place in range(100):
        intended = 100.0 * place
        sent = max(intended, free)
        first = sent + 50 + (5000 if place == 20 else 0)
        exchanges.append(exchange(intended, [event(first)], started_ms=intended, sent_ms=sent))
        free = first
    found = measure(run(exchanges), window=Window(start_us=0, end_us=10_000_000, rule="all"))
    assert found.value("ttft_p90") == 0.05
    assert found.value("ttft_max") == 5.05
    # The one that stalled has 5,050 ms, and each one after it 50 ms less than the one before.
    assert found.value("ttft_intended_max") == 5.05
    assert found.value("ttft_intended_p90") == pytest.approx(4.555)
    assert found.value("ttft_intended_p50") == pytest.approx(2.575)


def test_the_share_of_prompts_in_a_cache_is_the_answers_or_else_the_server_s() -> None:
    told = [
        answer(0, 50, 10, 5, input_tokens=100, cached_tokens=80),
        answer(10, 50, 10, 5, input_tokens=300, cached_tokens=0),
        answer(20, 50, 10, 5, input_tokens=300),
    ]
    server = [
        ServerSample(0, {"prefix_queried_tokens": 0, "prefix_hit_tokens": 0}),
        ServerSample(80_000, {"prefix_queried_tokens": 700, "prefix_hit_tokens": 350}),
    ]
    both = run(told, server=server)
    found = measure(both)
    assert found.value("cached_share") == 0.2
    assert found.value("prefix_hit_share") == 0.5
    silent = measure(run(told[2:], server=server))
    assert silent.value("cached_share") == 0.5
    assert measure(run(told[2:])).value("cached_share") is None


def test_errors_are_counted_by_kind_and_status() -> None:
    exchanges = [answer(10 * place, 50, 10, 5) for place in range(5)]
    for place, (error, status, message) in enumerate(
        [
            ("status", 429, None),
            ("status", 503, "full"),
            ("status", 503, "still full"),
            ("timeout", 200, None),
        ]
    ):
        exchanges.append(exchange(place, [], error=error, status=status, message=message, index=5 + place))
    errors = measure(run(exchanges)).errors
    assert [(one.error, one.status, one.count, one.message) for one in errors] == [
        ("status", 503, 2, "full"), ("status", 429, 1, None), ("timeout", 200, 1, None),
    ]  # fmt: skip


def test_tenants_priorities_and_turns_have_numbers_of_their_own() -> None:
    exchanges = [
        answer(
            100 * place, 50 if place % 2 else 150, 10, 5,
            tenant="web" if place % 2 else None, priority=place % 2, turn=place % 3, session=place // 3,
            error="cut" if place == 40 else None,
        )
        for place in range(120)
    ]  # fmt: skip
    whole_run = run(exchanges)
    found = measure(whole_run, window=whole(whole_run), slo=Slo.parse("ttft<100ms"))
    assert list(found.tenants) == ["", "web"]
    assert found.tenants["web"].summaries["ttft"].p99 == 0.05
    assert found.tenants[""].summaries["ttft"].min == 0.15
    assert (found.tenants["web"].goodput, found.tenants[""].goodput) == (1.0, 0.0)
    assert found.tenants[""].error_share == pytest.approx(1 / 60)
    assert [found.priorities[0].requests, found.priorities[1].requests] == [60, 60]
    assert [group.requests for group in found.turns.values()] == [40, 40, 40]
    assert found.targeted
    for groups in (found.tenants, found.priorities, found.turns):
        parts: list[Group] = [*groups.values()]
        for count in ("requests", "answered", "good"):
            assert sum(getattr(part, count) for part in parts) == getattr(found.all, count)
        for name, summary in found.all.summaries.items():
            counts = [part.summaries[name].count for part in parts if name in part.summaries]
            assert sum(counts) == summary.count


def test_groups_have_only_what_is_in_the_window() -> None:
    exchanges = [answer(100 * place, 50 + place, 10, 5, tenant="ab"[place % 2]) for place in range(40)]
    found = measure(run(exchanges), window=Window(start_us=1_000_000, end_us=2_000_000, rule=""))
    assert {name: group.requests for name, group in found.tenants.items()} == {"a": 5, "b": 5}
    assert {name: group.summaries["itl"].count for name, group in found.tenants.items()} == {"a": 20, "b": 20}
    assert {name: group.summaries["ttft"].max for name, group in found.tenants.items()} == {
        "a": 0.068,
        "b": 0.069,
    }


def test_one_tenant_without_a_name_one_priority_and_one_turn_are_no_groups() -> None:
    found = measure(run([answer(100 * place, 50, 10, 5, priority=3) for place in range(30)]))
    assert (found.tenants, found.priorities, found.turns) == ({}, {}, {})
    assert not found.targeted


@given(st.integers(0, 10**9), st.integers(0, 10**6))
def test_a_shift_of_all_times_changes_no_number(shift_us: int, seed: int) -> None:
    draws = random.Random(seed)
    exchanges = [_random_exchange(draws, place) for place in range(40)]
    here = run(exchanges)
    window = Window(start_us=100_000, end_us=350_000, rule="")
    there = msgspec.json.decode(msgspec.json.encode(here), type=Run)
    for one in there.exchanges:
        for name in ("intended_us", "sent_us", "end_us"):
            setattr(one, name, getattr(one, name) + shift_us)
        for chunk in one.chunks:
            chunk.at_us += shift_us
    shifted = Window(start_us=100_000 + shift_us, end_us=350_000 + shift_us, rule="")
    first, second = measure(here, window=window), measure(there, window=shifted)
    assert first.all == second.all
    assert first.scalars == pytest.approx(second.scalars, nan_ok=True)
    assert first.problems == second.problems


@given(st.integers(0, 10**6), st.integers(1, 39))
def test_windows_side_by_side_add_up(seed: int, cut: int) -> None:
    draws = random.Random(seed)
    both = run([_random_exchange(draws, place) for place in range(40)])
    end = whole(both).end_us
    edges = [0, cut * 10_000, end]
    parts = [measure(both, window=Window(start_us=start, end_us=stop, rule=""))
             for start, stop in itertools.pairwise(edges)]  # fmt: skip
    everything = measure(both, window=Window(start_us=0, end_us=end, rule=""))
    for name in ("offered_rate", "request_rate", "output_rate", "goodput_rate", "concurrency"):
        amounts = [(part.value(name) or 0.0) * part.window.length_s for part in parts]
        assert sum(amounts) == pytest.approx((everything.value(name) or 0.0) * everything.window.length_s)
    assert sum(part.all.requests for part in parts) == 40
