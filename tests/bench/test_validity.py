"""What a reader of the numbers is told, and which of it makes a run invalid."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.bench.measures import Measures, measure
from octavo.bench.record import ClientSample, Exchange, Kind
from octavo.bench.window import Window
from tests.bench.runs import answer, event, exchange, run


def even(requests: int = 200, **fields: Any) -> list[Exchange]:
    """One every 100 ms; TTFT 50 ms, five tokens 10 ms apart."""
    return [answer(place * 100, 50, 10, 5, **fields) for place in range(requests)]


def of(exchanges: list[Exchange], **fields: Any) -> Measures:
    return measure(run(exchanges, **fields))


def late(by_ms: float, share: float, ttft_ms: float = 50) -> list[Exchange]:
    """The last `share` of each hundred is begun late."""
    return [
        answer(
            place * 100, ttft_ms + (by_ms if place % 100 >= 100 * (1 - share) else 0), 10, 5,
            started_ms=place * 100 + (by_ms if place % 100 >= 100 * (1 - share) else 0),
            sent_ms=place * 100 + (by_ms if place % 100 >= 100 * (1 - share) else 0),
        )
        for place in range(400)
    ]  # fmt: skip


def test_nothing_is_told_where_nothing_is_wrong() -> None:
    found = of(even(), client=[ClientSample(second * 1_000_000, 0.3, 500, 1) for second in range(20)])
    assert (found.problems, found.valid) == ([], True)


def test_late_sends_falsify_the_load() -> None:
    found = of(late(12, 0.05))
    assert not found.valid
    [words] = found.problems
    assert words == (
        "Requests were sent late: the schedule lag's p99 is 12.0 ms, above 10.0 ms; "
        "the measuring process could not keep up, so the load was not the one that was asked for."
    )


@pytest.mark.parametrize(
    ("by_ms", "share", "ttft_ms"), [(9.9, 0.05, 50), (12, 0.0, 50), (49, 0.05, 1000)], ids=str
)
def test_lateness_that_no_figure_shows_is_no_problem(by_ms: float, share: float, ttft_ms: float) -> None:
    assert of(late(by_ms, share, ttft_ms)).valid


def test_lateness_is_judged_by_the_median_ttft_where_that_is_long() -> None:
    assert "above 50.0 ms" in of(late(51, 0.05, 1000)).problems[0]


def test_a_slow_connection_is_the_server_s_and_no_lateness() -> None:
    slow = even(started_ms=0.0)
    for one in slow:
        one.started_us, one.connected_us, one.sent_us = (
            one.intended_us,
            one.intended_us + 40_000,
            one.intended_us + 40_000,
        )
    found = of(slow)
    assert found.valid
    assert found.value("connect_p50") == 0.04
    assert found.value("ttft_p50") == 0.01
    assert found.value("ttft_intended_p50") == 0.05


def test_a_process_without_time_left_or_that_wakes_late_measures_itself() -> None:
    busy = [ClientSample(second * 1_000_000, 0.95, 500, 1) for second in range(20)]
    [words] = of(even(), client=busy).problems
    assert words == (
        "The measuring process used 95% of a core, above 90%: it measured itself as well; "
        "give it a core of its own, or lower the rate."
    )
    sleepy = [ClientSample(second * 1_000_000, 0.5, 30_000, 1) for second in range(20)]
    found = of(even(), client=sleepy)
    assert not found.valid
    late = "The measuring process woke late (p99 30.0 ms, above 10.0 ms): its time stamps are late too"
    assert found.problems == [f"{late}."]
    others = [ClientSample(second * 1_000_000, 0.02, 30_000, 1) for second in range(20)]
    assert of(even(), client=others).problems == [
        f"{late}; it used 2% of a core, so others kept it from one."
    ]


def test_a_run_that_was_stopped_is_measured_up_to_what_was_given_up() -> None:
    exchanges = even()
    for place in range(195, 200):
        exchanges[place].error = "client"
    found = of(exchanges, stopped="interrupted.")
    assert found.valid
    assert found.problems == [
        "The run ended before its workload (interrupted): measured is what came before."
    ]
    assert found.window.end_us == 19_500_000
    assert found.value("goodput") == 1.0


def test_one_that_gave_up_what_ran_from_the_beginning_is_not() -> None:
    exchanges = even()
    for place in range(0, 200, 20):
        exchanges[place].error = "client"
    found = of(exchanges, stopped="interrupted")
    assert not found.valid
    assert (
        found.problems[0] == "10 of 200 requests were given up or never sent by the measuring process itself."
    )


def _replaced(error: str, every: int) -> list[Exchange]:
    exchanges = even(400)
    for place in range(every - 1, 400, every):
        exchanges[place] = exchange(
            place * 100,
            [],
            index=place,
            session=place,
            error=error,
            sent_us=None,
            status=None,
            output_tokens=None,
        )
    return exchanges


def test_requests_that_the_measuring_process_never_sent_falsify_the_load() -> None:
    found = of(_replaced("client", 50))
    assert not found.valid
    # 359 of 400 are in the window, from the 41st on; each 50th of all is unsent.
    assert found.problems == [
        "7 of 359 requests were given up or never sent by the measuring process itself."
    ]
    assert of(_replaced("client", 200)).valid


def test_refused_and_skipped_requests_are_the_server_s_doing() -> None:
    refused = of(_replaced("connect", 2))
    assert (refused.valid, refused.problems) == (True, [])
    skipped = of(_replaced("skipped", 50))
    assert skipped.valid
    assert skipped.problems == ["7 requests were not sent because an answer before them failed."]


def test_a_run_without_a_steady_part_says_what_is_in_its_figures() -> None:
    found = of(even(9))
    assert found.valid
    unsteady, few = found.problems
    assert unsteady == (
        "Measured is the whole run: a steady part of it would have 7 requests: "
        "warm-up and drain are in the figures, and rates are too low."
    )
    assert few == "Only 9 requests are measured: a p99 of fewer than 100 is little below the longest."


def test_a_window_without_requests_measures_nothing() -> None:
    found = measure(run(even(20)), window=Window(start_us=10**9, end_us=10**10, rule="later"))
    assert not found.valid
    assert found.problems == ["No request was meant to be sent in the window: there is nothing to measure."]
    assert found.value("goodput") is None
    assert found.value("error_share") is None


def test_a_server_that_answers_nothing() -> None:
    found = of([exchange(place * 100, [], error="timeout", end_ms=place * 100 + 50) for place in range(200)])
    assert found.valid and not found.answered
    assert found.problems == [
        "None of 179 requests was answered: the times and rates of answers say nothing."
    ]
    assert found.value("goodput") == 0.0


def test_a_server_that_falls_behind_is_told() -> None:
    # One request each 100 ms, and one answer each 150 ms.
    found = of([answer(place * 100, place * 50 + 50, 10, 5) for place in range(300)])
    assert found.valid
    [words] = found.problems
    assert words.startswith("The server fell behind: 33% of the offered requests piled up")


@pytest.mark.parametrize(
    ("counted", "words"),
    [
        ("none", "49.7% of the answers have no count of tokens: they are in no rate, TPOT or ITL."),
        (
            "spread",
            "49.7% of the answers have one count for the whole, laid over their events by characters:",
        ),
    ],
)
def test_counts_that_are_estimates_are_told(counted: str, words: str) -> None:
    exchanges = [answer(place * 100, 50, 10, 5, counted=("ids", counted)[place % 2]) for place in range(200)]
    found = of(exchanges)
    [told] = found.problems
    assert told.startswith(words)
    assert found.valid


def test_answers_without_text_or_shorter_than_wanted_are_told() -> None:
    exchanges = [
        exchange(place * 100, [event(place * 100 + 50, 1, Kind.EMPTY)], wanted_output=4)
        if place % 2
        else answer(place * 100, 50, 10, 5)
        for place in range(200)
    ]
    assert of(exchanges).problems == [
        "49.7% of the answers had no text; they have no TTFT.",
        "49.7% of the answers ended before the wanted length: the load was lighter than described.",
    ]


def test_one_request_is_not_told_as_several() -> None:
    assert of(even(1)).problems[-1].startswith("Only 1 request is measured")
