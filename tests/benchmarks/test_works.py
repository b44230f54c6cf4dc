"""Which answers count in the benchmark of speculation: those that copy, and do not loop."""

from __future__ import annotations

import pytest

from benchmarks.works import COPYING, LOOP, WORKS, copied, loops


def test_a_loop_at_the_end() -> None:
    rising = list(range(200))
    assert not loops(rising)
    for period in (1, 3, LOOP // 2):
        assert loops(rising + [number % period for number in range(LOOP)])
        assert not loops(rising + [number % period for number in range(LOOP)] + [1000])
    assert not loops(rising + [number % (LOOP // 2 + 1) for number in range(LOOP)])


@pytest.mark.parametrize(
    ("answer", "share"),
    [
        ([1, 2, 3, 4, 5, 6], 1.0),
        ([1, 2, 3], 0.0),
        ([1, 2, 3, 90, 4, 5, 6], 0.0),
        ([90, 91, 1, 2, 3, 4], 4 / 6),
        ([90, 91, 92, 93, 90, 91, 92, 93], 0.5),  # what the answer says twice
        ([7, 8], 0.0),
    ],
)
def test_what_stood_before(answer: list[int], share: float) -> None:
    assert copied([1, 2, 3, 4, 5, 6, 7], answer) == pytest.approx(share)


def test_a_run_may_begin_in_the_prompt() -> None:
    assert copied([1, 2, 3, 4, 9, 1, 2], [3, 4]) == 1.0


def test_every_work_is_of_a_kind() -> None:
    assert {*COPYING} < {*WORKS} and all(works for works in WORKS.values())
    texts = [work.text for works in WORKS.values() for work in works]
    assert len(set(texts)) == len(texts)
