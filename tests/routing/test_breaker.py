"""A breaker opens, waits, lets one request in, and closes or waits longer."""

from __future__ import annotations

from octavo.routing.breaker import MOST_COOLDOWN_S, Breaker


def test_it_opens_after_so_many_failures_in_a_row() -> None:
    breaker = Breaker(failures=3, cooldown_s=5)
    for number in range(2):
        assert not breaker.failed(number, "no")
    breaker.succeeded()
    for number in range(2):
        assert not breaker.failed(number, "no")
    assert breaker.state(2) == "closed"
    assert breaker.failed(2, "no")
    assert breaker.state(6.9) == "open"
    assert not breaker.enter(6.9)
    assert breaker.state(7) == "half-open"


def test_half_open_lets_one_in_and_a_failure_doubles_the_wait() -> None:
    breaker = Breaker(failures=1, cooldown_s=5)
    breaker.failed(0, "no")
    now_s, wait_s = 0.0, 5.0
    while wait_s < MOST_COOLDOWN_S:
        now_s += wait_s
        assert breaker.enter(now_s)
        assert not breaker.enter(now_s)
        breaker.failed(now_s, "no")
        wait_s = min(2 * wait_s, MOST_COOLDOWN_S)
        assert breaker.until_s == now_s + wait_s
    assert breaker.enter(now_s + wait_s)
    breaker.succeeded()
    assert breaker.enter(now_s + wait_s) and breaker.enter(now_s + wait_s)
    breaker.failed(now_s, "no")
    assert breaker.until_s == now_s + 5


def test_late_failures_of_requests_that_were_on_their_way_change_nothing() -> None:
    breaker = Breaker(failures=1, cooldown_s=5)
    breaker.failed(0, "no")
    breaker.failed(1, "no")
    assert breaker.until_s == 5


def test_a_request_that_says_nothing_lets_the_next_one_try() -> None:
    breaker = Breaker(failures=1, cooldown_s=5)
    breaker.failed(0, "no")
    assert breaker.enter(5)
    breaker.left()
    assert breaker.enter(5)


def test_an_answer_that_began_lets_others_in_and_opens_at_once_where_it_breaks() -> None:
    breaker = Breaker(failures=3, cooldown_s=5)
    for _ in range(3):
        breaker.failed(0, "no")
    assert breaker.enter(5)
    breaker.began()
    assert breaker.state(5) == "closed"
    assert breaker.failed(6, "broken")
    assert breaker.state(6) == "open"


def test_a_rest_is_no_failure() -> None:
    breaker = Breaker(failures=1, cooldown_s=5)
    breaker.rest(0, 2, "later")
    assert (breaker.state(1), breaker.state(2)) == ("open", "closed")
    breaker.rest(0, 1e9, "much later")
    assert breaker.state(MOST_COOLDOWN_S) == "closed"


def test_to_be_heard_of_ends_the_wait() -> None:
    breaker = Breaker(failures=1, cooldown_s=50)
    breaker.hear(0)
    breaker.failed(0, "no")
    breaker.hear(1)
    assert breaker.state(1) == "half-open"
    assert breaker.enter(1)
    breaker.hear(1)
    assert not breaker.enter(1)
