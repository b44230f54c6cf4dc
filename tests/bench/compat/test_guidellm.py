"""GuideLLM's oddities, each worked by hand."""

from __future__ import annotations

import pytest

from octavo.bench.compat import recompute
from octavo.bench.record import Exchange
from tests.bench.compat.examples import exchange, run_of


def value(name: str, *exchanges: Exchange) -> float:
    return recompute(run_of(*exchanges), "guidellm").value(name)


def test_a_median_is_a_value_that_occurred() -> None:
    answers = [exchange(f"{at} answer, {at} usage") for at in (10, 20, 30, 40)]
    assert value("time_to_first_token_ms.median", *answers) == 20
    assert value("time_to_first_token_ms.percentiles.p90", *answers) == 40
    assert value("time_to_first_token_ms.mean", *answers) == 25


def test_the_clock_starts_when_a_connection_is_open() -> None:
    assert (
        value("time_to_first_token_ms.mean", exchange("50 answer, 51 usage", start_ms=10, connected_ms=35))
        == 15
    )
    assert value("time_to_first_token_ms.mean", exchange("50 answer, 51 usage", start_ms=10)) == 40


def test_a_request_lasts_until_its_end() -> None:
    one = exchange("4 role, 30 answer, 50 answer, 80 usage, 90 done", end_ms=95)
    assert value("request_latency.median", one) == pytest.approx(0.095)
    assert value("time_to_first_token_ms.median", one) == 30


def test_inter_token_latency_is_weighted_by_tokens() -> None:
    slow = exchange("100 answer, 200 answer, 201 usage")
    fast = exchange("10 answer, 11 answer, 12 answer, 13 answer, 14 usage")
    assert value("inter_token_latency_ms.median", slow, fast) == pytest.approx(1)
    assert value("inter_token_latency_ms.mean", slow, fast) == pytest.approx((100 + 3 * 1) / 4)


def test_time_per_output_token_has_the_first_in_it() -> None:
    slow = exchange("100 answer, 200 answer, 201 usage")
    fast = exchange("10 answer, 11 answer, 12 answer, 13 answer, 14 usage")
    assert value("time_per_output_token_ms.mean", fast) == pytest.approx(13 / 4)
    assert value("time_per_output_token_ms.mean", slow, fast) == pytest.approx((200 + 13) / 6)


def test_an_error_makes_the_request_fail_even_after_text() -> None:
    one = exchange("10 role, 20 answer, 30 error, 31 done", error="stream")
    assert value("request_totals.successful", one) == 0
    assert value("request_totals.errored", one) == 1
    assert value("time_to_first_token_ms.mean", one) == 0


def test_an_answer_without_text_or_tokens_has_failed() -> None:
    assert value("request_totals.errored", exchange("4 role, 10 finish, 11 usage, 11 done")) == 1


def test_without_a_count_each_event_is_a_token() -> None:
    assert value("output_token_count.mean", exchange("10 answer 3, 20 answer 2, 21 done")) == 2


def test_the_mean_rate_is_events_over_time_and_the_median_a_local_one() -> None:
    answers = [exchange(f"{at} answer, {at} usage, {at} done") for at in (100, 200, 1000)]
    assert value("requests_per_second.mean", *answers) == pytest.approx(3)
    # From 0 on: nothing for 50 ms, 1 over 100, 1 over 450, 1 over 400 (it and the end of the window are one).
    assert value("requests_per_second.median", *answers) == pytest.approx(1 / 0.45)
    assert value("requests_per_second.percentiles.p99", *answers) == pytest.approx(1 / 0.1)


def test_events_within_a_tenth_of_a_millisecond_are_one() -> None:
    close = [exchange(f"{at} answer, {at} usage, {at} done") for at in (500, 500.1, 1000)]
    apart = [exchange(f"{at} answer, {at} usage, {at} done") for at in (500, 500.2, 1000)]
    assert value("requests_per_second.percentiles.p99", *close) == pytest.approx(2 / 0.5)
    assert value("requests_per_second.percentiles.p99", *apart) == pytest.approx(4, rel=0.01)
    assert value("requests_per_second.mean", *close) == pytest.approx(3)


def test_tokens_lie_evenly_between_the_first_and_the_last() -> None:
    # Ten tokens: one at 100 ms, and three each at 200, 300 and 400, whenever they really came.
    one = exchange("100 answer, 110 answer 4, 120 answer, 400 answer 4, 400 usage, 500 done")
    assert value("output_tokens_per_second.mean", one) == pytest.approx(20)
    # From 0 on: 0 for 50 ms, then 10/s, 30/s and 30/s for 100 each, 3 over the 100 to the end's half, 0 for 50.
    assert value("output_tokens_per_second.median", one) == pytest.approx(30)


def test_concurrency_is_over_time() -> None:
    long = exchange("10 answer, 11 usage, 1000 done")
    short = exchange("310 answer, 311 usage, 500 done", start_ms=300)
    assert value("request_concurrency.mean", long, short) == pytest.approx(1.2)
    assert value("request_concurrency.median", long, short) == 1
    assert value("request_concurrency.percentiles.p90", long, short) == 2


def test_what_found_no_connection_has_failed() -> None:
    unsent = exchange("", error="connect", status=None, end_ms=20)
    unsent.sent_us = None
    assert value("request_totals.errored", unsent) == 1
    assert value("requests_per_second.mean", unsent) == 0
