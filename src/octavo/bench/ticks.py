"""The events of an answer that has one token in each, by their times alone: of a simulation there are hundreds of
millions. Knows no metric.

Steps that several answers were in have one array of times, which each of these answers refers to: a token costs a few
bytes instead of a hundred.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np

from octavo.bench.distribution import Ints
from octavo.bench.record import Chunk, Kind

__all__ = ["Ticks"]


class Ticks(Sequence[Chunk]):
    """To read it is as the list of these chunks, each made when it is asked for."""

    __slots__ = ("_length", "_times", "characters", "finished")

    def __init__(self, characters: int) -> None:
        """`characters`: of each token."""
        self.characters = characters
        self.finished = False
        """The last event has a finish reason."""
        self._times: list[array[int]] = []
        self._length = 0

    def extend(self, at_us: array[int]) -> None:
        """A token at each of these times [µs, int64], which nobody changes from now on."""
        self._times.append(at_us)
        self._length += len(at_us)

    def column(self, name: str) -> Ints:
        """A field of all chunks [events], by its name in `Chunk`."""
        if name != "at_us":
            value = {"tokens": 1, "characters": self.characters, "kind": int(Kind.ANSWER)}[name]
            found = np.full(self._length, value, dtype=np.int64)
            if name == "kind" and self.finished:
                found[-1:] |= int(Kind.FINISH)
            return found
        parts = [np.frombuffer(times, dtype=np.int64) for times in self._times]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Chunk]:
        last = self._length - 1 if self.finished else self._length
        for place, at_us in enumerate(at_us for times in self._times for at_us in times):
            kind = Kind.ANSWER | Kind.FINISH if place == last else Kind.ANSWER
            yield Chunk(at_us, 1, self.characters, kind)

    @overload
    def __getitem__(self, place: int) -> Chunk: ...
    @overload
    def __getitem__(self, place: slice) -> list[Chunk]: ...
    def __getitem__(self, place: int | slice) -> Chunk | list[Chunk]:
        return list(self)[place]
