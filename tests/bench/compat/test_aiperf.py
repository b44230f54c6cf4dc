"""aiperf's oddities, each worked by hand."""

from __future__ import annotations

import pytest

from octavo.bench.compat import recompute
from octavo.bench.record import Exchange
from tests.bench.compat.examples import exchange, run_of


def value(name: str, *exchanges: Exchange) -> float:
    return recompute(run_of(*exchanges), "aiperf").value(name)


def test_the_role_and_empty_pieces_are_no_tokens() -> None:
    one = exchange("4 role, 5 empty, 30 answer, 34 empty, 50 answer, 51 usage")
    assert value("time_to_first_token.p50", one) == 30
    assert value("inter_chunk_latency.p50", one) == 20


def test_the_latency_ends_with_the_last_content() -> None:
    assert value("request_latency.avg", exchange("30 answer, 50 answer, 70 finish, 80 usage, 90 done")) == 50


def test_reasoning_ends_the_time_to_first_token_but_not_to_first_output() -> None:
    one = exchange("10 thought, 20 thought, 45 answer, 46 usage")
    assert value("time_to_first_token.avg", one) == 10
    assert value("time_to_second_token.avg", one) == 10
    assert value("time_to_first_output_token.avg", one) == 45


def test_inter_token_latency_is_one_number_for_each_request() -> None:
    slow = exchange("100 answer, 200 answer, 201 usage")
    fast = exchange("10 answer, 11 answer, 12 answer, 13 answer, 14 usage")
    assert value("inter_token_latency.p50", slow, fast) == 50.5
    assert value("output_token_throughput_per_user.max", slow, fast) == 1000


def test_tokens_after_the_first_event_are_all_but_one() -> None:
    # Four tokens came with the first event, yet the decode is taken to have made five.
    assert value("inter_token_latency.avg", exchange("10 answer 4, 60 answer 2, 61 usage")) == 10


def test_a_number_that_no_request_has_is_left_out() -> None:
    report = recompute(run_of(exchange("10 answer, 11 usage")), "aiperf")
    names = {value.name.split(".")[0] for value in report.values}
    assert "time_to_first_token" in names
    assert not names & {"inter_token_latency", "inter_chunk_latency", "time_to_second_token"}


def test_the_duration_is_from_the_first_start_to_the_last_content_of_what_was_valid() -> None:
    good = exchange("300 answer, 600 answer 4, 900 usage, 900 done", start_ms=100, prompt=15)
    bad = exchange("", status=500, error="status", end_ms=2000)
    assert value("benchmark_duration.avg", good, bad) == 0.5
    assert value("request_throughput.avg", good, bad) == 2
    assert value("output_token_throughput.avg", good, bad) == 10
    assert value("total_token_throughput.avg", good, bad) == 40
    assert value("error_request_count.avg", good, bad) == 1


def test_an_answer_without_content_has_failed() -> None:
    report = recompute(run_of(exchange("4 role, 10 finish, 11 usage, 11 done")), "aiperf")
    assert report.value("request_count.avg") == 0
    assert report.value("error_request_count.avg") == 1


def test_an_answer_of_one_moment_gives_no_rate_of_its_own() -> None:
    one = exchange("10 answer, 10 answer, 10 usage", start_ms=10)
    names = {value.name for value in recompute(run_of(one), "aiperf").values}
    assert "e2e_output_token_throughput.avg" not in names
    assert "request_throughput.avg" not in names


def test_a_percentile_lies_between_two_values() -> None:
    answers = [exchange(f"{at} answer, {at} usage") for at in (10, 20, 30, 40)]
    assert value("time_to_first_token.p50", *answers) == 25
    assert value("time_to_first_token.p75", *answers) == pytest.approx(32.5)
    assert value("time_to_first_token.std", *answers) == pytest.approx(125**0.5)
