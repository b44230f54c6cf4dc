"""The gaps between neighbouring events of each request, four bytes each: a simulation has hundreds of millions.

They are kept as they were read, some requests at a time, and never all of them put into one array. Knows no metric.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.bench.distribution import Distribution, Floats, Ints
from octavo.bench.events import Bools

__all__ = ["Gaps"]


class Gaps:
    """Of each request [requests]: its gaps in whole microseconds, in the order of its events, and how many more it has
    that are 0."""

    def __init__(self, parts: list[tuple[NDArray[Any], Ints]], zeros: Ints) -> None:
        """`parts`: of requests that follow each other, all their gaps [gaps], and how many each has [some requests].
        `zeros` [requests]."""
        self._us = [us for us, _ in parts]
        self._many = [many for _, many in parts]
        self._begins = np.cumsum([0, *map(len, self._many)])
        """Of each part the first request, and behind all the number of requests."""
        self._zeros = zeros
        self._known: tuple[NDArray[Any], list[Distribution]] | None = None
        """What was asked for last, and found."""

    def distribution(self, which: Bools) -> Distribution:
        """Of all gaps of the requests for which `which` [requests] holds; in seconds."""
        return self.by_group(np.where(which, 0, -1), 1)[0]

    def by_group(self, group: Ints, groups: int) -> list[Distribution]:
        """One for each group; `group` [requests] has numbers below `groups`, or -1 for none."""
        known = self._known
        if known is None or len(known[1]) != groups or not np.array_equal(known[0], group):
            self._known = known = group, self._by_group(group, groups)
        return known[1]

    def _by_group(self, group: Ints, groups: int) -> list[Distribution]:
        # Millions of gaps in whole microseconds have some thousand different lengths: each is counted.
        zeros = np.bincount(group + 1, weights=self._zeros, minlength=groups + 1)[1:].astype(np.int64)
        found: list[list[tuple[NDArray[Any], Ints]]] = [
            [(np.zeros(1, dtype=np.int64), zeros[number : number + 1])] for number in range(groups)
        ]
        # numpy sorts 16 bits by radix, ten times as fast as 64.
        numbers = group.astype(np.int16) if groups < 1 << 15 else group
        for begin, us, many in self._parts():
            of_gap = np.repeat(numbers[begin : begin + len(many)], many)
            if groups == 1:
                found[0].append(_counted(us if not of_gap.any() else us[of_gap == 0]))
                continue
            us = us[np.argsort(of_gap, kind="stable")]
            ends = np.cumsum(np.bincount(of_gap.astype(np.int64) + 1, minlength=groups + 1))
            for number in range(groups):
                if ends[number] < ends[number + 1]:
                    found[number].append(_counted(us[ends[number] : ends[number + 1]]))
        return [
            Distribution(
                np.concatenate([us for us, _ in one]), np.concatenate([n for _, n in one]), scale=1e6
            )
            for one in found
        ]

    def quantiles(self, share: float) -> Floats:
        """Of each request [requests] the quantile `share` (0 to 1), in seconds, as its `Distribution` has it; NaN
        without gaps."""
        return np.concatenate(
            [
                _quantiles(us.astype(np.int64), many, self._zeros[begin : begin + len(many)], share)
                for begin, us, many in self._parts()
            ]
            or [np.zeros(0)]
        )

    def each(self) -> list[Floats]:
        """Of each request all its gaps, in seconds, the zeros first."""
        pieces = chain.from_iterable(np.split(us, np.cumsum(many)[:-1]) for _, us, many in self._parts())
        return [
            np.concatenate((np.zeros(zeros), us / 1e6))
            for zeros, us in zip(self._zeros.tolist(), pieces, strict=True)
        ]

    def of(self, place: int) -> tuple[Ints, int]:
        """Of one request: its gaps in microseconds, and how many more are 0."""
        part = int(np.searchsorted(self._begins, place, side="right")) - 1
        many = self._many[part]
        own = place - int(self._begins[part])
        begin = int(many[:own].sum())
        return self._us[part][begin : begin + int(many[own])].astype(np.int64), int(self._zeros[place])

    def _parts(self) -> Iterator[tuple[int, NDArray[Any], Ints]]:
        """Of each part with requests in it: the first of them, the gaps, and how many each has."""
        for begin, us, many in zip(self._begins.tolist(), self._us, self._many, strict=False):
            if len(many):
                yield begin, us, many


def _counted(us: NDArray[Any]) -> tuple[NDArray[Any], Ints]:
    values, counts = np.unique(us, return_counts=True)
    return values.astype(np.int64), counts.astype(np.int64)


def _quantiles(us: Ints, many: Ints, zeros: Ints, share: float) -> Floats:
    # Sorted within each request by one sort of all: a gap has 40 bits (12 days), its request the ones above.
    owner = np.repeat(np.arange(len(many), dtype=np.int64), many)
    ordered = np.sort(owner << 40 | us) & ((1 << 40) - 1)
    begin = np.cumsum(many) - many
    total = many + zeros
    place = (total - 1) * (100 * share / 100)
    low = place.astype(np.int64)

    def at(number: Ints) -> Floats:
        number = number - zeros
        found = np.zeros(len(number))
        real = (number >= 0) & (total > 0)
        found[real] = ordered[(begin + number)[real]] / 1e6
        return found

    below, above, part = at(low), at(np.minimum(low + 1, total - 1)), place - low
    found = np.where(part >= 0.5, above - (above - below) * (1 - part), below + (above - below) * part)
    return np.where(total > 0, found, np.nan)
