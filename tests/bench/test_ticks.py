"""Ticks are read as the list of chunks that they stand for."""

from __future__ import annotations

from array import array

import msgspec
import numpy as np
import pytest

from octavo.bench.events import Events
from octavo.bench.record import Chunk, Exchange, Kind
from octavo.bench.ticks import Ticks, columns_of


def ticks(*parts: list[int], finished: bool = True) -> Ticks:
    made = Ticks(4)
    for part in parts:
        made.extend(array("q", part), 0, len(part))
    made.finished = finished
    return made


def column(name: str, *answers: Ticks) -> list[int]:
    found = np.zeros(sum(map(len, answers)), dtype=np.int64)
    columns_of(answers, name, found)
    listed: list[int] = found.tolist()
    return listed


def test_they_are_the_chunks_of_their_times() -> None:
    made = ticks([5, 9], [12])
    assert list(made) == [
        Chunk(5, 1, 4, Kind.ANSWER), Chunk(9, 1, 4, Kind.ANSWER), Chunk(12, 1, 4, Kind.ANSWER | Kind.FINISH),
    ]  # fmt: skip
    assert (len(made), made[-1].at_us, [one.at_us for one in made[:2]]) == (3, 12, [5, 9])
    assert made[1].kind == Kind.ANSWER
    assert ticks([5], finished=False)[0].kind == Kind.ANSWER
    assert (list(ticks()), column("at_us", ticks()), bool(ticks())) == ([], [], False)
    assert column("characters", made, ticks(), ticks([5])) == [4, 4, 4, 4]
    answer, last = int(Kind.ANSWER), int(Kind.ANSWER | Kind.FINISH)
    assert column("kind", made, ticks(), ticks([5], finished=False)) == [answer, answer, last, answer]


def test_ranges_of_one_array_go_on_or_leave_a_gap() -> None:
    """As those of a machine whose times are still being noted."""
    times = array("q", [1, 2, 3, 4])
    made = Ticks(4)
    made.extend(times, 1, 3)
    times.append(6)
    made.extend(times, 3, 3)
    made.extend(times, 3, 4)
    assert ([one.at_us for one in made], len(made)) == ([2, 3, 4], 3)
    times.extend([7, 8])
    made.extend(times, 5, 7)
    made.extend(array("q", [9]), 0, 1)
    assert [one.at_us for one in made] == column("at_us", made) == [2, 3, 4, 7, 8, 9]
    assert len(made) == 6


def test_events_of_ticks_and_of_chunks_are_the_same() -> None:
    kept = [ticks([5, 9], [12]), [Chunk(7, 2, 8, int(Kind.ANSWER))], ticks(), [], ticks([1], finished=False)]

    def exchange(index: int, chunks: object) -> Exchange:
        one = Exchange(index=index, session=index, intended_us=0, end_us=20, wanted_output=3)
        one.chunks = chunks  # type: ignore[assignment]
        return one

    one = Events([exchange(index, chunks) for index, chunks in enumerate(kept)])
    other = Events([exchange(index, list(chunks)) for index, chunks in enumerate(kept)])
    for name in ("at_us", "tokens", "kind", "owner"):
        assert getattr(one, name).tolist() == getattr(other, name).tolist()
        assert getattr(one, name).dtype == getattr(other, name).dtype


def test_only_a_record_knows_how_to_write_them() -> None:
    with pytest.raises(TypeError, match="Ticks"):
        msgspec.json.encode(ticks([1]))
