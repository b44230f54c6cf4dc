"""vLLM's oddities, each worked by hand."""

from __future__ import annotations

import pytest

from octavo.bench.compat import recompute
from octavo.bench.record import Exchange
from tests.bench.compat.examples import exchange, run_of


def value(name: str, *exchanges: Exchange) -> float:
    return recompute(run_of(*exchanges), "vllm").value(name)


def test_the_role_alone_is_the_first_token() -> None:
    assert value("median_ttft_ms", exchange("4 role, 30 answer, 40 answer, 41 usage")) == 4


def test_the_count_alone_is_no_token_and_ends_nothing() -> None:
    one = exchange("30 answer, 40 answer, 95 usage, 99 done")
    assert value("median_e2el_ms", one) == 40
    assert value("mean_itl_ms", one) == 10


def test_the_clock_starts_before_the_connection() -> None:
    assert value("median_ttft_ms", exchange("50 answer, 51 usage", start_ms=10, connected_ms=35)) == 40


def test_empty_pieces_and_the_finish_reason_are_gaps_between_tokens() -> None:
    one = exchange("10 answer, 30 empty, 60 finish, 61 usage", tokens=1)
    assert value("mean_itl_ms", one) == 25
    assert value("median_e2el_ms", one) == 60


def test_gaps_are_between_events_however_many_tokens_these_bring() -> None:
    one = exchange("10 answer, 50 answer 4, 51 usage")
    assert value("median_itl_ms", one) == 40
    assert value("median_tpot_ms", one) == 10


def test_an_answer_of_one_token_has_no_tpot() -> None:
    many = exchange("10 answer, 20 answer, 40 answer, 41 usage")
    assert value("mean_tpot_ms", exchange("9 answer, 10 usage"), many) == 15
    assert value("mean_tpot_ms", exchange("9 answer, 10 usage")) == 0


def test_all_gaps_of_all_answers_are_pooled() -> None:
    slow = exchange("100 answer, 200 answer, 201 usage")
    fast = exchange("10 answer, 11 answer, 12 answer, 13 answer, 14 usage")
    assert value("median_itl_ms", slow, fast) == 1
    assert value("mean_itl_ms", slow, fast) == pytest.approx(103 / 4)


def test_a_percentile_lies_between_two_values() -> None:
    answers = [exchange(f"{at} answer, {at} usage") for at in (10, 20, 30, 40)]
    assert value("median_ttft_ms", *answers) == 25
    assert value("p90_ttft_ms", *answers) == pytest.approx(37)
    assert value("std_ttft_ms", *answers) == pytest.approx(125**0.5)


def test_an_error_after_the_first_event_is_passed_over() -> None:
    one = exchange("10 role, 20 answer, 30 error, 31 done", error="stream")
    assert value("completed", one) == 1
    assert value("median_e2el_ms", one) == 20


def test_an_answer_without_any_choice_and_one_that_was_cut_have_failed() -> None:
    nothing = exchange("30 error, 31 done", error="stream")
    cut = exchange("10 role, 20 answer", error="cut", end_ms=25)
    assert value("completed", nothing, cut) == 0
    assert value("failed", nothing, cut) == 2
    assert value("median_ttft_ms", nothing, cut) == 0


def test_rates_divide_what_was_successful_by_all_the_time() -> None:
    good = exchange("10 answer, 20 answer 3, 21 usage, 500 done", prompt=6)
    bad = exchange("", status=500, error="status", end_ms=2000)
    assert value("request_throughput", good, bad) == 0.5
    assert value("output_throughput", good, bad) == 2
    assert value("total_token_throughput", good, bad) == 5


def test_requests_that_were_skipped_are_none_of_its() -> None:
    assert value("failed", exchange("", error="skipped", status=None)) == 0


def test_peaks_are_of_seconds_from_the_first_request_on() -> None:
    early = exchange("700 answer, 900 answer, 1600 answer, 1601 usage", start_ms=500)
    late = exchange("1550 answer, 1580 answer 9, 1590 answer, 1590 usage", start_ms=1400)
    # seconds from 500 ms on: events at 200, 400, 1100 and 1050, 1080, 1090 ms
    assert value("max_output_tokens_per_s", early, late) == 4
    assert value("max_concurrent_requests", early, late) == 2


def test_what_a_record_cannot_tell_is_noted() -> None:
    uncounted = exchange("10 answer 2, 20 answer, 21 done")
    report = recompute(run_of(uncounted, exchange("", error="timeout", status=None)), "vllm")
    assert report.value("total_output_tokens") == 3
    assert [note.split()[0] for note in report.notes] == ["Some", "Requests"]
