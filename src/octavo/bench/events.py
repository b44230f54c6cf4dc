"""All events of a run as arrays, and what is found in them for each request. Knows no metric.

A run has millions of events, so nothing here is done for one event at a time but the reading of its fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, groupby
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.bench.distribution import Floats, Ints
from octavo.bench.record import Exchange
from octavo.bench.ticks import Ticks

__all__ = ["Bools", "Events", "maybe", "whole"]

Bools = NDArray[np.bool_]


class Events:
    """Arrays [events], in the order of requests and, within each, of time."""

    def __init__(self, exchanges: list[Exchange]) -> None:
        many = np.fromiter((len(one.chunks) for one in exchanges), np.int64, len(exchanges))
        total = int(many.sum())
        self._requests = len(exchanges)
        self.at_us = _column(exchanges, "at_us", total, np.int64)
        """When each came."""
        self.tokens = _column(exchanges, "tokens", total, np.int32)
        self.kind = _column(exchanges, "kind", total, np.int16)
        self.owner: NDArray[np.int32] = np.repeat(np.arange(len(exchanges), dtype=np.int32), many)
        """Which request each is of: its place in the run."""
        self._sums = np.concatenate(([0], np.cumsum(self.tokens, dtype=np.int64)))
        self._ends = np.cumsum(many)
        self._begins: Ints = self._ends - many

    def first(self, which: Bools) -> Ints:
        """The place of the first event of each request [requests] for which `which` [events] holds; -1 without."""
        return self._edge(which, slice(None, 1), slice(1, None))

    def last(self, which: Bools) -> Ints:
        """As `first`, the last."""
        return self._edge(which, slice(-1, None), slice(None, -1))

    def _edge(self, which: Bools, outer: slice, inner: slice) -> Ints:
        found = np.full(self._requests, -1, dtype=np.int64)
        places = np.flatnonzero(which)
        owner = self.owner[places]
        change = owner[1:] != owner[:-1]
        found[owner[outer]] = places[outer]
        found[owner[inner][change]] = places[inner][change]
        return found

    def time(self, place: Ints) -> Floats:
        """When the event at each `place` came, in microseconds; NaN for the place -1."""
        if not len(self.at_us):
            return np.full(len(place), np.nan)
        return np.where(place >= 0, self.at_us[place], np.nan)

    def total(self) -> Ints:
        """The tokens of each request [requests]."""
        return self._sums[self._ends] - self._sums[self._begins]

    def total_to(self, place: Ints) -> Ints:
        """The tokens of each request [requests] up to its event at `place`, and with it; 0 for the place -1."""
        return np.where(place >= 0, self._sums[place + 1] - self._sums[self._begins], 0)

    def since(self, place: Ints) -> Bools:
        """Which events [events] are their request's at `place` [requests] or later ones; none for the place -1."""
        starts = np.where(place >= 0, place, len(self.owner))
        return np.arange(len(self.owner)) >= starts[self.owner]

    def gaps(self, which: Bools) -> tuple[Ints, Ints]:
        """The gaps between neighbours of one request among the events for which `which` [events] holds.

        In microseconds [gaps], and whose each is [gaps].
        """
        at, owner = (self.at_us, self.owner) if which.all() else (self.at_us[which], self.owner[which])
        same = owner[1:] == owner[:-1]
        return np.diff(at)[same], owner[1:][same].astype(np.int64)


def _column(
    exchanges: list[Exchange], name: str, total: int, kind: type[np.signedinteger[Any]]
) -> NDArray[Any]:
    """A field of all chunks. Neighbours that are kept in the same way are read together."""
    column = np.empty(total, dtype=kind)
    at = 0
    for ticks, some in groupby(
        (one.chunks for one in exchanges), key=lambda chunks: isinstance(chunks, Ticks)
    ):
        if ticks:
            for chunks in some:
                assert isinstance(chunks, Ticks)
                column[at : at + len(chunks)] = chunks.column(name)
                at += len(chunks)
            continue
        held = list(some)
        many = sum(map(len, held))
        column[at : at + many] = np.fromiter(map(attrgetter(name), chain.from_iterable(held)), kind, many)
        at += many
    return column


def whole(exchanges: Sequence[Exchange], name: str) -> Ints:
    """A field of each, that is a whole number."""
    return np.fromiter(map(attrgetter(name), exchanges), np.int64, len(exchanges))


def maybe(exchanges: Sequence[Exchange], name: str) -> Floats:
    """A field of each, that is a number or None, which becomes NaN."""
    values = [getattr(one, name) for one in exchanges]
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
