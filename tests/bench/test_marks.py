"""What is found in the events of some requests, and that those that failed have no gaps."""

from __future__ import annotations

import numpy as np

from octavo.bench.events import Events, parts_of
from octavo.bench.marks import Marks
from octavo.bench.record import Kind
from tests.bench.runs import ANSWER, event, exchange


def test_firsts_and_gaps_of_each() -> None:
    good = exchange(0, [event(5, 0, Kind.ROLE), event(10), event(12, 2), event(20, 1, ANSWER | Kind.FINISH)])
    failed = exchange(0, [event(7), event(9)], error="cut")
    marks = Marks(Events([good, failed, exchange(0, [])]), np.array([True, False, True]))
    assert marks.tokens.tolist() == [4, 2, 0]
    assert marks.first_us[:2].tolist() == [10_000, 7_000] and np.isnan(marks.first_us[2])
    assert marks.finish_us[0] == 20_000 and np.isnan(marks.sentence_us).all()
    us, many = marks.itl
    assert (us.tolist(), us.itemsize, many.tolist()) == ([2_000, 8_000], 4, [2, 0, 0])
    assert marks.zeros.tolist() == [1, 0, 0]
    assert marks.icl is marks.itl


def test_parts_hold_whole_requests_in_order() -> None:
    many = [0, 3, 0, 900, 5]
    exchanges = [exchange(0, [event(at) for at in range(count)]) for count in many]
    assert [(begin, events.requests) for begin, events in parts_of(exchanges)] == [(0, 5)]
    assert [(begin, events.requests) for begin, events in parts_of([])] == [(0, 0)]
