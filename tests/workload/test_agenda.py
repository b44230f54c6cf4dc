"""Whose turn it is: due requests in order, those that wait, and how little is read ahead."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.workload.agenda import Agenda
from octavo.workload.generate import requests_of
from octavo.workload.request import Request
from octavo.workload.spec import Workload, load_workload


def request(index: int, at_s: float, after: int | None = None, delay_s: float = 0.0) -> Request:
    return Request(index=index, at_s=at_s, after=after, delay_s=delay_s, session=index, output_tokens=1)


def test_requests_come_when_they_are_due_and_followers_after_their_answer() -> None:
    agenda = Agenda([request(0, 0.0), request(1, 0.5, 0, 0.5), request(2, 1.0), request(3, 9.0)])
    assert agenda.next_us == 0
    assert [(at, one.index) for at, one in agenda.take(0)] == [(0, 0)]
    assert agenda.next_us == 1_000_000
    assert agenda.waiting == 1
    agenda.answered(0, 2_000_000)
    assert [(at, one.index) for at, one in agenda.take(2_400_000)] == [(1_000_000, 2)]
    assert agenda.next_us == 2_500_000
    assert [(at, one.index) for at, one in agenda.take(10_000_000)] == [(2_500_000, 1), (9_000_000, 3)]
    assert agenda.over


def test_who_waits_for_an_answer_that_never_comes_is_not_due() -> None:
    agenda = Agenda([request(0, 0.0), request(1, 0.0, 0)])
    assert [one.index for _, one in agenda.take(5)] == [0]
    assert (agenda.next_us, agenda.waiting, agenda.over) == (None, 1, True)


def counted(requests: Iterator[Request], read: list[int]) -> Iterator[Request]:
    for one in requests:
        read.append(one.index)
        yield one


def workload(text: str) -> Workload:
    import tomllib

    import msgspec

    return msgspec.convert(tomllib.loads(text), Workload)


LENGTHS = 'input = { kind = "fixed", tokens = 5 }\noutput = { kind = "fixed", tokens = 5 }\n'


def test_an_open_workload_without_end_is_read_by_little() -> None:
    read: list[int] = []
    endless = workload(LENGTHS + 'requests = 1000000\narrivals = { kind = "poisson", rate = 10.0 }')
    agenda = Agenda(counted(requests_of(endless), read))
    for _ in range(100):
        at = agenda.next_us
        assert at is not None
        for _, one in agenda.take(at):
            agenda.answered(one.index, at + 3_000_000)
    assert len(read) <= 102


@pytest.mark.parametrize(
    "think", ['{ kind = "fixed", seconds = 0.0 }', '{ kind = "exponential", mean_s = 2.0 }']
)
def test_a_closed_loop_is_read_as_answers_come(think: str) -> None:
    read: list[int] = []
    loop = workload(
        LENGTHS + f'requests = 100000\narrivals = {{ kind = "closed", clients = 4, think = {think} }}'
    )
    agenda = Agenda(counted(requests_of(loop), read), clients=4)
    now, running, seen = 0, list[tuple[int, int]](), 0
    for _ in range(400):
        for at, one in agenda.take(now):
            assert at <= now
            heapq.heappush(running, (now + 100_000 + 40_000 * (one.index % 3), one.index))
            seen += 1
        assert len(running) <= 4
        due = agenda.next_us
        if running and (due is None or running[0][0] <= due):
            now, index = heapq.heappop(running)
            agenda.answered(index, now)
        else:
            assert due is not None, "somebody is always due or being answered"
            now = due
    assert seen > 150
    assert len(read) < seen + 150


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    name=st.sampled_from(["agent", "chat", "voice", "batch"]),
    length_us=st.integers(0, 40_000_000),
)
def test_everything_comes_once_and_nobody_before_the_answer_that_it_waits_for(
    seed: int, name: str, length_us: int
) -> None:
    import msgspec

    whole = msgspec.structs.replace(load_workload(name), seed=seed, requests=150)
    expected = list(requests_of(whole))
    clients = getattr(whole.arrivals, "clients", None)
    agenda = Agenda(iter(expected), clients=clients)
    running: list[tuple[int, int]] = []
    ended: dict[int, int] = {}
    now, taken = 0, list[int]()
    while not (agenda.over and not running):
        for at, one in agenda.take(now):
            assert at <= now
            if one.after is not None:
                assert at == ended[one.after] + int(one.delay_s * 1e6 + 0.5)
            else:
                assert at == int(one.at_s * 1e6 + 0.5)
            taken.append(one.index)
            heapq.heappush(running, (now + length_us, one.index))
        due = agenda.next_us
        if running and (due is None or running[0][0] <= due):
            now, index = heapq.heappop(running)
            ended[index] = now
            agenda.answered(index, now)
        elif due is not None:
            now = max(now, due)
    assert sorted(taken) == [one.index for one in expected]
    assert agenda.waiting == 0
