"""The steady window, with its edges worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bench.record import Run
from octavo.bench.window import Window, choose, explicit, whole
from octavo.errors import InvalidParameter
from tests.bench.runs import answer, exchange, run


def edges_ms(window: Window) -> tuple[float, float]:
    return window.start_us / 1000, window.end_us / 1000


def test_short_answers_leave_out_a_tenth_of_the_arrivals_and_what_comes_after_the_last() -> None:
    # Sessions begin from 500 to 10,400 ms: a tenth of 9,900 is 990. Answers take 20 ms.
    found = choose(run([answer(500 + 100 * place, 10, 10, 2) for place in range(100)]))
    assert edges_ms(found) == (1490, 10_400)
    assert found.steady
    assert found.rule == "without 1.5 s of warm-up at the start and 0.0 s at the end"
    assert found.length_s == 8.91


def test_answers_that_take_long_make_the_warm_up_as_long_as_the_median_one() -> None:
    # Two of three take 2 s, the third 8 s; a tenth of the span of 9.9 s would be 0.99 s.
    takes = [2000, 8000, 2000]
    found = choose(run([answer(100 * place, 10, takes[place % 3] - 10, 2) for place in range(100)]))
    assert edges_ms(found) == (2000, 9900)


def test_a_warm_up_is_never_more_than_a_third() -> None:
    found = choose(run([answer(100 * place, 10, 60_000, 2) for place in range(100)]))
    assert edges_ms(found) == (3300, 9900)


def test_sessions_count_and_not_their_turns() -> None:
    # 40 sessions, one each 100 ms; each has three turns, the last of which ends 400 ms after its beginning.
    exchanges = [
        answer(100 * session + 150 * turn, 50, 50, 2, index=3 * session + turn, session=session, turn=turn)
        for session in range(40)
        for turn in range(3)
    ]
    assert edges_ms(choose(run(exchanges))) == (400, 3900)


def test_too_few_requests_are_measured_whole() -> None:
    found = choose(run([answer(500 + 100 * place, 10, 10, 2) for place in range(10)]))
    assert not found.steady
    assert (found.start_us, found.end_us) == (0, 1_420_001)
    assert found.rule == "the whole run: a steady part of it would have 8 requests"


def test_one_request_is_told_as_one() -> None:
    found = choose(run([answer(100 * place, 10, 10, 2) for place in range(3)]))
    assert found.rule == "the whole run: a steady part of it would have 1 request"


def test_ten_requests_are_enough() -> None:
    # Of 12, the first two are warm-up and the last one ends it; of 13 there are ten between.
    assert not choose(run([answer(100 * place, 10, 10, 2) for place in range(12)])).steady
    assert choose(run([answer(100 * place, 10, 10, 2) for place in range(13)])).steady


def test_a_crowd_at_one_moment_has_no_steady_part() -> None:
    found = choose(run([answer(0, 10 + place, 10, 2) for place in range(100)]))
    assert not found.steady
    assert found.rule == "the whole run: a steady part of it would have 0 requests"


def test_a_run_without_requests() -> None:
    found = choose(run([]))
    assert (found.start_us, found.end_us, found.steady) == (0, 1, False)
    assert found.length_s > 0


def _closed(named: bool) -> Run:
    """Three clients that begin at 0, 1,000 and 2,000 ms and take a session at a time, each of 300, 400 and 500 ms."""
    exchanges = []
    for client, takes in enumerate([300, 400, 500]):
        for turn in range(20):
            at = 1000 * client + takes * turn
            exchanges.append(answer(at, 10, takes - 10, 2, client=client if named else None))
    return run(exchanges, clients=3, rate=None)


def test_a_closed_loop_is_steady_from_the_last_client_s_beginning_to_the_first_one_s_end() -> None:
    # The first ends its 20th session after 6,000 ms.
    assert edges_ms(choose(_closed(named=True))) == (2000, 6000)


def test_a_closed_loop_whose_clients_have_no_names() -> None:
    # The third session begins at 600. The last is taken at 11,500, and its end is the first after that.
    found = choose(_closed(named=False))
    assert edges_ms(found) == (1150, 12_000)


def test_a_run_that_was_stopped_ends_before_what_was_given_up() -> None:
    exchanges = [answer(100 * place, 10, 10, 2) for place in range(100)]
    exchanges[70].error = exchanges[80].error = "client"
    assert edges_ms(choose(run(exchanges, stopped="the limit of 10 s"))) == (990, 7000)
    assert edges_ms(choose(run(exchanges))) == (990, 9900)


def test_a_window_that_is_asked_for() -> None:
    given_run = run([answer(100 * place, 10, 10, 2) for place in range(100)])
    assert edges_ms(explicit(given_run, 3.0)) == (3000, 9900)
    assert edges_ms(explicit(given_run, 0.0, 5.0)) == (0, 5000)
    assert explicit(given_run, 0.0, 5.0).rule == "from 0 s to 5 s, as asked"
    with pytest.raises(
        InvalidParameter, match=r"The warm-up is 10 s, and the time to measure ends after 9\.9 s"
    ):
        explicit(given_run, 10.0)
    with pytest.raises(InvalidParameter, match=r"The warm-up is -1 s; it must be 0 or more\."):
        explicit(given_run, -1.0)
    with pytest.raises(InvalidParameter, match="must be 0 or more"):
        explicit(given_run, float("nan"))


def test_the_whole_run_has_its_last_answer_in_it_and_what_was_never_sent() -> None:
    unsent = exchange(900, [], error="skipped", sent_us=None, end_ms=900)
    assert whole(run([answer(0, 10, 10, 2), unsent])).end_us == 900_001


@given(
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 20_000)), min_size=1, max_size=60),
    st.sampled_from([None, 1, 4]),
)
def test_a_window_is_never_empty_and_lies_within_the_run(
    drawn: list[tuple[int, int]], clients: int | None
) -> None:
    exchanges = [
        answer(at, 1, takes, 2, client=place % clients if clients else None)
        for place, (at, takes) in enumerate(drawn)
    ]
    found = choose(run(exchanges, clients=clients))
    inside = sum(found.start_us <= one.intended_us < found.end_us for one in exchanges)
    assert found.length_s > 0
    assert inside >= 10 if found.steady else inside == len(exchanges)
    assert 0 <= found.start_us < found.end_us <= max(one.end_us for one in exchanges) + 1
