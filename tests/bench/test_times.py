"""The times of single requests, each worked out by hand from its events."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bench.distribution import Ints
from octavo.bench.record import Chunk, Exchange, Kind
from octavo.bench.times import PER_REQUEST, ExchangeTimes, Times
from tests.bench.runs import answer, event, exchange, run

ANSWER, REASONING, TOOL, ROLE = Kind.ANSWER, Kind.REASONING, Kind.TOOL, Kind.ROLE


def of(one: Exchange) -> ExchangeTimes:
    return Times(run([one])).of(0)


def gaps_ms(times: ExchangeTimes) -> list[float]:
    """All gaps between tokens, from the shortest."""
    return [1000 * (times.itl.percentile(100 * place / max(times.itl.count - 1, 1)) or 0.0)
            for place in range(times.itl.count)]  # fmt: skip


def test_an_answer_of_single_tokens() -> None:
    # Sent 4 ms late, at 104; tokens at 150, 160, 180, 210; ended at 215.
    chunks = [event(150), event(160), event(180), event(210)]
    found = of(exchange(100, chunks, started_ms=101, connected_ms=103, sent_ms=104, end_ms=215))
    assert found.ttft_s == 0.046
    assert found.ttft_intended_s == 0.050
    assert found.ttfa_s == 0.046
    assert found.tpot_s == 0.020  # (210 - 150) / (4 - 1)
    assert gaps_ms(found) == [10, 20, 30]
    assert found.max_itl_s == 0.030
    assert found.e2e_s == 0.111
    assert found.e2e_intended_s == 0.115
    assert found.normalized_s == 0.115 / 4
    assert found.value("lag") == 0.001
    assert found.value("connect") == 0.003


def test_an_open_connection_costs_nothing_and_without_a_beginning_the_sending_is_it() -> None:
    found = of(exchange(0, [event(50)], sent_ms=2))
    assert found.value("lag") == 0.002
    assert found.value("connect") is None


def test_a_role_an_empty_event_and_a_count_are_no_token() -> None:
    chunks = [
        event(10, 0, ROLE), event(20, 0, 0), event(25, 0, Kind.EMPTY), event(30), event(40, 0, Kind.EMPTY),
        event(50), event(60, 0, Kind.FINISH), event(61, 0, Kind.USAGE), event(62, 0, Kind.DONE),
    ]  # fmt: skip
    found = of(exchange(0, chunks))
    assert found.ttft_s == 0.030
    assert gaps_ms(found) == [20]
    assert found.icl.count == 1
    assert found.tpot_s == 0.020
    assert found.e2e_s == 0.062


def test_the_role_may_come_with_the_first_text() -> None:
    assert of(exchange(0, [event(10, 1, ROLE | ANSWER), event(20)])).ttft_s == 0.010


def test_tokens_of_one_event_have_no_gap_between_them() -> None:
    # 3 tokens at 100, 4 at 130, 1 at 140: gaps 0 0, 30 0 0 0, 10.
    found = of(exchange(0, [event(100, 3), event(130, 4), event(140, 1)]))
    assert gaps_ms(found) == [0, 0, 0, 0, 0, 10, 30]
    assert found.icl.count == 2
    assert found.icl.percentile(0) == 0.010
    assert found.tpot_s == 0.040 / 5  # the 5 tokens that came after the first event took 40 ms


def test_an_answer_in_one_event_has_gaps_of_nothing_and_no_tpot() -> None:
    found = of(exchange(0, [event(100, 5)]))
    assert found.ttft_s == 0.100
    assert found.tpot_s is None
    assert gaps_ms(found) == [0, 0, 0, 0]
    assert found.max_itl_s == 0.0
    assert found.icl.count == 0


def test_an_answer_of_one_token_has_neither_gaps_nor_tpot() -> None:
    found = of(exchange(0, [event(100)]))
    assert (found.ttft_s, found.tpot_s, found.max_itl_s, found.itl.count) == (0.1, None, None, 0)
    assert found.normalized_s == 0.1


def test_tokens_whose_text_is_held_back_before_the_first_text_come_with_it() -> None:
    # A token at 10 and one at 20 have no text yet; at 30 there is text of three tokens.
    held = [event(10, 1, Kind.EMPTY), event(20, 1, Kind.EMPTY), event(30, 1), event(50, 1)]
    found = of(exchange(0, held))
    assert found.ttft_s == 0.030
    assert gaps_ms(found) == [0, 0, 20]
    assert found.tpot_s == 0.020
    assert found.icl.count == 1


def test_tokens_whose_text_is_held_back_later_come_when_they_are_told() -> None:
    found = of(exchange(0, [event(10), event(20, 1, Kind.EMPTY), event(35, 1), event(45, 1, Kind.FINISH)]))
    assert gaps_ms(found) == [10, 10, 15]
    assert found.icl.count == 3
    assert found.tpot_s == pytest.approx(0.035 / 3)


def test_counts_that_come_an_event_late_leave_a_token_in_the_first_text() -> None:
    # Text at 10, 20 and 30, but the counts come at 20 (one), 30 (one) and with the finish at 40 (one).
    late = [event(10, 0), event(20, 1), event(30, 1), event(40, 1, Kind.FINISH)]
    found = of(exchange(0, late))
    assert found.ttft_s == 0.010
    assert gaps_ms(found) == [10, 20]  # the count at 20 is of the token at 10
    assert found.tpot_s == 0.015
    at_once = of(exchange(0, [event(10, 0), event(20, 3)]))
    assert gaps_ms(at_once) == [0, 10]
    assert at_once.tpot_s == 0.005


def test_reasoning_is_before_the_answer() -> None:
    chunks = [event(100, 1, REASONING), event(120, 1, REASONING), event(150, 1), event(160, 1)]
    found = of(exchange(0, chunks))
    assert (found.ttft_s, found.ttfa_s) == (0.100, 0.150)
    assert gaps_ms(found) == [10, 20, 30]
    only = of(exchange(0, chunks[:2]))
    assert (only.ttft_s, only.ttfa_s, only.ttfs_s) == (0.100, None, None)


def test_a_piece_of_a_tool_call_is_an_answer_without_a_sentence() -> None:
    found = of(exchange(0, [event(100, 1, TOOL), event(110, 1, TOOL), event(115, 0, Kind.FINISH)]))
    assert (found.ttft_s, found.ttfa_s, found.ttfs_s) == (0.100, 0.100, None)


def test_a_sentence_is_whole_at_its_event_or_at_the_answer_s_end() -> None:
    sentences = [
        event(10),
        event(30, 1, ANSWER | Kind.SENTENCE),
        event(40),
        event(50, 1, ANSWER | Kind.SENTENCE),
    ]
    assert of(exchange(0, sentences)).ttfs_s == 0.030
    finished = [event(10), event(20), event(25, 0, Kind.FINISH), event(40, 0, Kind.DONE)]
    assert of(exchange(0, finished)).ttfs_s == 0.025
    assert of(exchange(0, [event(10), event(20)], end_ms=22)).ttfs_s == 0.022


@pytest.mark.parametrize("error", ["cut", "timeout", "stream", "status"])
def test_a_failed_request_has_only_its_lateness(error: str) -> None:
    failed = exchange(0, [event(10), event(20)], error=error, started_ms=1, sent_ms=3)
    whole_run = run([failed, answer(0, 10, 10, 2)])
    times = Times(whole_run)
    found = times.of(0)
    assert {name: found.value(name) for name in PER_REQUEST if found.value(name) is not None} == {
        "lag": 0.001
    }
    assert found.itl.count == found.icl.count == 0
    assert times.distribution("itl", np.array([True, True])).count == 1


def test_a_request_that_was_never_sent_has_nothing() -> None:
    found = of(exchange(0, [], error="skipped", sent_us=None, output_tokens=None))
    assert [found.value(name) for name in PER_REQUEST] == [None] * len(PER_REQUEST)


def test_an_answer_without_text_has_an_end_and_no_beginning() -> None:
    times = Times(run([exchange(0, [event(10, 1, Kind.EMPTY), event(20, 0, Kind.FINISH)])]))
    found = times.of(0)
    assert times.silent.tolist() == [True]
    assert (found.ttft_s, found.ttfa_s, found.ttfs_s, found.tpot_s) == (None, None, None, None)
    assert found.itl.count == 0
    assert found.e2e_s == 0.020
    assert found.normalized_s == 0.020


def test_an_answer_without_counts_has_events_only() -> None:
    found = of(exchange(0, [event(10, 0), event(30, 0)], output_tokens=None, counted="none"))
    assert found.ttft_s == 0.010
    assert (found.tpot_s, found.normalized_s, found.itl.count) == (None, None, 0)
    assert found.icl.percentile(50) == 0.020


def test_a_whole_count_without_one_in_the_events_is_the_answer_s() -> None:
    found = of(exchange(0, [event(10, 0), event(30, 0)], output_tokens=10))
    assert found.normalized_s == 0.003
    assert (found.tpot_s, found.itl.count) == (None, 0)


def test_nothing_at_all() -> None:
    times = Times(run([]))
    assert times.distribution("itl", np.zeros(0, dtype=bool)).count == 0
    assert len(times.values("itl")) == len(times.values("ttft")) == 0


_EVENTS = st.lists(
    st.tuples(
        st.integers(0, 40),
        st.integers(0, 3),
        st.sampled_from([ANSWER, REASONING, TOOL, ROLE, Kind.EMPTY, Kind.FINISH, Kind(0)]),
    ),
    max_size=8,
)
_REQUESTS = st.lists(st.tuples(_EVENTS, st.booleans()), max_size=6)


def _exchanges(drawn: list[tuple[list[tuple[int, int, Kind]], bool]], offset_ms: int = 0) -> list[Exchange]:
    made = []
    for index, (events, good) in enumerate(drawn):
        at = offset_ms + 10 * index
        chunks = []
        for gap, tokens, kind in events:
            at += gap
            chunks.append(event(at, tokens, kind))
        made.append(exchange(offset_ms + 10 * index, chunks, index=index, error=None if good else "cut"))
    return made


def _slowly(one: Exchange) -> tuple[float | None, float | None, list[float]]:
    """TTFT, TPOT and the gaps between tokens in seconds, by a loop over tokens: the definitions once more."""
    if one.error is not None or one.sent_us is None:
        return None, None, []
    text = ANSWER | REASONING | TOOL
    places = [place for place, chunk in enumerate(one.chunks) if chunk.kind & text]
    if not places:
        return None, None, []
    first = places[0]
    tokens: list[int] = []  # when each came
    start = one.chunks[first].at_us
    for chunk in one.chunks[: first + 1]:
        tokens += [start] * chunk.tokens
    for chunk in one.chunks[first + 1 :]:
        tokens += [chunk.at_us] * chunk.tokens
    if tokens and tokens[0] != start:
        tokens[0] = start
    with_first = max(1, sum(chunk.tokens for chunk in one.chunks[: first + 1]))
    later = len(tokens) - with_first
    tpot = (tokens[-1] - start) / later / 1e6 if later > 0 else None
    gaps = [(after - before) / 1e6 for before, after in itertools.pairwise(tokens)]
    return (start - one.sent_us) / 1e6, tpot, sorted(gaps)


@given(_REQUESTS)
def test_whole_arrays_say_what_a_loop_over_tokens_says(
    drawn: list[tuple[list[tuple[int, int, Kind]], bool]],
) -> None:
    exchanges = _exchanges(drawn)
    times = Times(run(exchanges))
    pooled: list[float] = []
    for place, one in enumerate(exchanges):
        ttft, tpot, gaps = _slowly(one)
        found = times.of(place)
        assert found.ttft_s == ttft
        assert found.tpot_s == (None if tpot is None else pytest.approx(tpot, abs=1e-12))
        assert [gap / 1000 for gap in gaps_ms(found)] == pytest.approx(gaps, abs=1e-12)
        assert found.max_itl_s == (max(gaps) if gaps else None)
        pooled += gaps
    everyone = times.distribution("itl", np.ones(len(exchanges), dtype=bool))
    assert everyone.count == len(pooled)
    for p in (0, 50, 90, 99):
        assert everyone.percentile(p) == (np.percentile(pooled, p) if pooled else None)


@given(_REQUESTS, st.sampled_from([None, 0.0, 0.5, 0.9, 0.99]))
def test_values_of_all_are_those_of_each(
    drawn: list[tuple[list[tuple[int, int, Kind]], bool]], share: float | None
) -> None:
    times = Times(run(_exchanges(drawn)))
    for metric in (*PER_REQUEST, "itl", "icl"):
        each = [times.of(place).value(metric, share) for place in range(len(drawn))]
        found = [None if np.isnan(value) else value for value in times.values(metric, share)]
        assert found == each


@given(_REQUESTS, st.integers(1, 10**7))
def test_a_shift_of_all_times_changes_nothing(
    drawn: list[tuple[list[tuple[int, int, Kind]], bool]], offset_ms: int
) -> None:
    here, there = Times(run(_exchanges(drawn))), Times(run(_exchanges(drawn, offset_ms)))
    for metric in (*PER_REQUEST, "itl", "icl"):
        assert np.array_equal(here.values(metric), there.values(metric), equal_nan=True)


@given(_REQUESTS, st.lists(st.integers(-1, 2), min_size=6, max_size=6))
def test_groups_together_are_the_whole(
    drawn: list[tuple[list[tuple[int, int, Kind]], bool]], groups: list[int]
) -> None:
    times = Times(run(_exchanges(drawn)))
    group = np.array(groups[: len(drawn)], dtype=np.int64)
    for metric in (*PER_REQUEST, "itl", "icl"):
        found = times.by_group(metric, group, 3)
        for number in range(3):
            alone = times.distribution(metric, group == number)
            assert (found[number].count, found[number].summary()) == (alone.count, alone.summary())
        assert sum(one.count for one in found) == times.distribution(metric, group >= 0).count


@given(_REQUESTS, st.lists(st.integers(-1, 2), min_size=6, max_size=6), st.integers(1, 9))
def test_requests_read_some_after_others_are_those_read_at_once(
    drawn: list[tuple[list[tuple[int, int, Kind]], bool]], groups: list[int], most: int
) -> None:
    """As a run of a million requests is read, to the last bit of everything that is computed."""
    whole = Times(run(_exchanges(drawn)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("octavo.bench.events._PART", most)
        parts = Times(run(_exchanges(drawn)))
        assert sum(len(events.at_us) for _, events in parts.parts()) == sum(len(one) for one, _ in drawn)
        assert [place for here, _ in parts.parts() for place in range(here.start, here.stop)] == list(
            range(len(drawn))
        )
        _assert_same(whole, parts, np.array(groups[: len(drawn)], dtype=np.int64))


def _assert_same(one: Times, other: Times, group: Ints) -> None:
    for metric in (*PER_REQUEST, "itl", "icl"):
        for share in (None, 0.0, 0.9):
            assert np.array_equal(one.values(metric, share), other.values(metric, share), equal_nan=True)
        if len(group):
            mine, its = one.each(metric), other.each(metric)
            assert [values.tolist() for values in mine] == [values.tolist() for values in its]
        for ours, theirs in zip(
            [one.distribution(metric, group >= 0), *one.by_group(metric, group, 3)],
            [other.distribution(metric, group >= 0), *other.by_group(metric, group, 3)],
            strict=True,
        ):
            assert (ours.summary(), ours.curve(9)) == (theirs.summary(), theirs.curve(9))
    for name in ("first_us", "output_tokens", "placed", "silent"):
        assert np.array_equal(getattr(one, name), getattr(other, name), equal_nan=name[0] in "fo")
    for place in range(len(group)):
        alone, same = one.of(place), other.of(place)
        assert (alone.ttft_s, alone.max_itl_s) == (same.ttft_s, same.max_itl_s)
        assert alone.itl.summary() == same.itl.summary()


def test_events_at_one_time_have_gaps_of_nothing() -> None:
    found = of(exchange(0, [Chunk(5, 1, 1, int(ANSWER)), Chunk(5, 1, 1, int(ANSWER))]))
    assert found.tpot_s == 0.0
    assert found.max_itl_s == 0.0
    assert found.icl.count == 1
