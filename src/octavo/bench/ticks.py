"""The events of an answer that has one token in each, by their times alone: of a simulation there are hundreds of
millions. Knows no metric.

The steps of a machine have one array of times, and an answer that was in all steps of a while says from which to which:
that costs next to nothing, where a token with an event of its own costs a hundred bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from octavo.bench.record import Chunk, Kind

__all__ = ["Ticks", "columns_of"]

_Part: TypeAlias = "tuple[array[int], int, int]"
_NONE = array("q")


class Ticks(Sequence[Chunk]):
    """To read it is as the list of these chunks, each made when it is asked for."""

    __slots__ = ("_before", "_first", "_times", "_until", "characters", "finished")

    def __init__(self, characters: int) -> None:
        """`characters`: of each token."""
        self.characters = characters
        self.finished = False
        """The last event has a finish reason."""
        self._times = _NONE
        self._first = self._until = 0
        self._before: tuple[_Part, ...] = ()
        """Parts of other arrays, or of the same with a gap between."""

    def extend(self, at_us: array[int], first: int, until: int) -> None:
        """A token at each of these times [µs, int64] from one place to before another one, which nobody changes from
        now on; the array may become longer."""
        if at_us is self._times and first == self._until:
            self._until = until
            return
        if self._until > self._first:
            self._before += ((self._times, self._first, self._until),)
        self._times, self._first, self._until = at_us, first, until

    def ranges(self) -> Iterator[_Part]:
        """Where its times are: in which array [µs], from which place to before which one."""
        yield from self._before
        if self._until > self._first:
            yield self._times, self._first, self._until

    def __len__(self) -> int:
        length = self._until - self._first
        return length + sum([until - first for _, first, until in self._before]) if self._before else length

    def __iter__(self) -> Iterator[Chunk]:
        last = len(self) - 1 if self.finished else len(self)
        for place, at_us in enumerate(
            at_us for times, first, until in self.ranges() for at_us in times[first:until]
        ):
            kind = Kind.ANSWER | Kind.FINISH if place == last else Kind.ANSWER
            yield Chunk(at_us, 1, self.characters, kind)

    @overload
    def __getitem__(self, place: int) -> Chunk: ...
    @overload
    def __getitem__(self, place: slice) -> list[Chunk]: ...
    def __getitem__(self, place: int | slice) -> Chunk | list[Chunk]:
        return list(self)[place]


def columns_of(answers: Sequence[Ticks], name: str, into: NDArray[Any]) -> None:
    """Write a field of all chunks of these answers, by its name in `Chunk`, into an array [events]."""
    if name == "at_us":
        ranges = [
            np.frombuffer(times, dtype=np.int64, count=until - first, offset=8 * first)
            for one in answers
            for times, first, until in one.ranges()
        ]
        if ranges:
            np.concatenate(ranges, out=into)
    elif name == "tokens":
        into[:] = 1
    else:
        many = np.fromiter(map(len, answers), np.int64, len(answers))
        if name == "characters":
            into[:] = np.repeat([one.characters for one in answers], many)
            return
        assert name == "kind", name
        into[:] = int(Kind.ANSWER)
        finished = np.fromiter((one.finished for one in answers), np.bool_, len(answers)) & (many > 0)
        into[np.cumsum(many)[finished] - 1] |= int(Kind.FINISH)
