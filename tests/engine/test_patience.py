"""How often an engine that dies is started again, and how soon."""

from __future__ import annotations

from octavo.engine.patience import Patience


def died(patience: Patience, *, outside: bool = False, learned: bool = False, culprit: bool = False) -> None:
    patience.died(1.0, outside=outside, learned=learned, culprit=culprit)


def test_the_first_is_replaced_at_once_and_later_ones_after_twice_the_time() -> None:
    patience, waits = Patience(), []
    for _ in range(9):
        died(patience, outside=True)
        waits.append(round(patience.wait_s, 3))
    assert waits == [0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5]
    patience.progress()
    died(patience)
    assert patience.wait_s == 0


def test_five_faults_in_a_row_are_enough() -> None:
    patience = Patience()
    for _ in range(4):
        died(patience)
        assert patience.exhausted is None
    died(patience)
    assert patience.exhausted == "died 5 times without progress"
    patience.progress()
    assert patience.exhausted is None


def test_kills_from_outside_take_ten() -> None:
    patience = Patience()
    for _ in range(9):
        died(patience, outside=True)
    assert patience.exhausted is None
    died(patience, outside=True)
    assert patience.exhausted == "died 10 times without progress"


def test_a_search_that_gets_on_has_all_the_deaths_that_it_needs() -> None:
    patience = Patience()
    for _ in range(30):
        died(patience, learned=True)
        assert patience.exhausted is None
        assert patience.wait_s == 0


def test_when_three_requests_in_a_row_ended_it_it_is_not_they() -> None:
    patience = Patience()
    for _ in range(2):
        died(patience, learned=True, culprit=True)
    patience.progress()
    for _ in range(2):
        died(patience, learned=True, culprit=True)
    assert patience.exhausted is None
    died(patience, learned=True, culprit=True)
    assert patience.exhausted == "ended with 3 requests in a row, without progress between them"


def test_a_process_that_served_long_did_not_die_of_what_ended_the_one_before() -> None:
    patience = Patience()
    for _ in range(9):
        patience.died(31.0, outside=False, learned=False, culprit=False)
    assert patience.exhausted is None
