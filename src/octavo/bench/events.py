"""All events of a run as arrays, and what is found in them for each request. Knows no metric.

A run has millions of events, so nothing here is done for one event at a time but the reading of its fields; and a
simulation may have hundreds of millions, so there is a way to read some requests after others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain, groupby, pairwise
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.bench.distribution import Floats, Ints
from octavo.bench.record import Exchange
from octavo.bench.ticks import Ticks, columns_of

__all__ = ["Bools", "Events", "maybe", "parts_of", "whole"]

Bools = NDArray[np.bool_]
_PART = 4_000_000
"""Events that are looked at together: so many take some hundred MB."""


class Events:
    """Arrays [events], in the order of requests and, within each, of time."""

    def __init__(self, exchanges: list[Exchange]) -> None:
        self._exchanges = exchanges
        self.requests = len(exchanges)
        self._many = _many(exchanges)
        self._ends = np.cumsum(self._many)
        self._begins: Ints = self._ends - self._many

    @cached_property
    def at_us(self) -> Ints:
        """When each came."""
        return self._column("at_us", np.int64)

    @cached_property
    def tokens(self) -> NDArray[np.int32]:
        return self._column("tokens", np.int32)

    @cached_property
    def kind(self) -> NDArray[np.int16]:
        return self._column("kind", np.int16)

    @cached_property
    def owner(self) -> NDArray[np.int32]:
        """Which request each is of: its place among these."""
        return np.repeat(np.arange(self.requests, dtype=np.int32), self._many)

    @cached_property
    def _sums(self) -> Ints:
        return np.concatenate(([0], np.cumsum(self.tokens, dtype=np.int64)))

    def _column(self, name: str, kind: type[np.signedinteger[Any]]) -> NDArray[Any]:
        return _column(self._exchanges, name, int(self._many.sum()), kind)

    def first(self, which: Bools) -> Ints:
        """The place of the first event of each request [requests] for which `which` [events] holds; -1 without."""
        return self._edge(which, slice(None, 1), slice(1, None))

    def last(self, which: Bools) -> Ints:
        """As `first`, the last."""
        return self._edge(which, slice(-1, None), slice(None, -1))

    def _edge(self, which: Bools, outer: slice, inner: slice) -> Ints:
        found = np.full(self.requests, -1, dtype=np.int64)
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

    def gaps(self, which: Bools) -> tuple[NDArray[Any], Ints]:
        """The gaps between neighbours of one request among the events for which `which` [events] holds.

        In microseconds [gaps], four bytes each where they fit, and how many each request has [requests].
        """
        at, owner = (self.at_us, self.owner) if which.all() else (self.at_us[which], self.owner[which])
        same = owner[1:] == owner[:-1]
        gaps = np.diff(at)[same]
        if not len(gaps) or int(gaps.max()) < 1 << 31:
            gaps = gaps.astype(np.int32)
        return gaps, np.bincount(owner[1:][same], minlength=self.requests)


def parts_of(exchanges: list[Exchange]) -> Iterator[tuple[int, Events]]:
    """The events of all requests, some after others, each time with the place of the first of them in the run. One of
    these takes a few hundred MB at most, unless a single request has more events than that."""
    part = np.maximum(np.cumsum(_many(exchanges)) - 1, 0) // _PART
    begins = [0, *(np.flatnonzero(np.diff(part)) + 1).tolist(), len(exchanges)]
    for begin, until in pairwise(begins):
        yield begin, Events(exchanges[begin:until])


def _many(exchanges: Sequence[Exchange]) -> Ints:
    return np.fromiter((len(one.chunks) for one in exchanges), np.int64, len(exchanges))


def _column(
    exchanges: list[Exchange], name: str, total: int, kind: type[np.signedinteger[Any]]
) -> NDArray[Any]:
    """A field of all chunks. Neighbours that are kept in the same way are read together."""
    column = np.empty(total, dtype=kind)
    at = 0
    for ticks, some in groupby(
        (one.chunks for one in exchanges), key=lambda chunks: isinstance(chunks, Ticks)
    ):
        held = list(some)
        many = sum(map(len, held))
        if ticks:
            columns_of(held, name, column[at : at + many])  # type: ignore[arg-type]  # as the key says
            at += many
            continue
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
