"""Prompts that are nearly the same, and splits that keep them together. Knows texts, and no label.

A question that is in the training part with another number in it is no test of anything: of two prompts that share
much of their wording, both must be on one side. Two prompts share a piece (five words, numbers alike) when both have
it and not many others do, so that a form which hundreds of prompts are written in makes no two of them alike.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["folds", "groups_of", "split"]

PIECE_WORDS = 5
COMMON = 20
"""Prompts with the same piece; what more have is a form."""
ALIKE = 0.4
"""Of the pieces of the one that has fewer: how many both have."""

_WORDS = re.compile(r"[^\W\d_]+|\d+|[^\w\s]")


def groups_of(prompts: Sequence[str]) -> NDArray[np.int64]:
    """[prompts]: a number for each group of near duplicates, 0 upwards by first appearance."""
    holders: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    whole: dict[tuple[str, ...], int] = {}
    parents = list(range(len(prompts)))
    for place, prompt in enumerate(prompts):
        words = tuple("0" if word.isdecimal() else word for word in _WORDS.findall(prompt.lower()))
        _join(parents, place, whole.setdefault(words, place))
        if whole[words] == place:
            for piece in set(_pieces(words)):
                holders[piece].append(place)
    rare = [places for places in holders.values() if len(places) <= COMMON]
    sizes: Counter[int] = Counter()
    shared: Counter[tuple[int, int]] = Counter()
    for places in rare:
        sizes.update(places)
        shared.update((first, second) for at, second in enumerate(places) for first in places[:at])
    for (first, second), count in shared.items():
        if count >= ALIKE * min(sizes[first], sizes[second]):
            _join(parents, first, second)
    roots = [_root(parents, place) for place in range(len(prompts))]
    numbers: dict[int, int] = {}
    return np.array([numbers.setdefault(root, len(numbers)) for root in roots], dtype=np.int64)


def split(groups: NDArray[np.int64], share: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows for training (so much of them) and for the test; a group is on one side. The same seed splits alike."""
    order = np.random.default_rng(seed).permutation(int(groups.max()) + 1)
    sizes = np.bincount(groups)[order]
    taken = order[np.cumsum(sizes) <= round(share * len(groups))]
    inside = np.isin(groups, taken)
    return np.flatnonzero(inside), np.flatnonzero(~inside)


def folds(groups: NDArray[np.int64], count: int, seed: int) -> NDArray[np.int64]:
    """[rows]: which of `count` parts a row is in; a group is in one part."""
    names, inverse = np.unique(groups, return_inverse=True)
    order = np.random.default_rng(seed).permutation(len(names))
    return (order % count)[inverse].astype(np.int64)


def _pieces(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for start in range(max(1, len(words) - PIECE_WORDS + 1)):
        yield tuple(words[start : start + PIECE_WORDS])


def _root(parents: list[int], place: int) -> int:
    while parents[place] != place:
        parents[place] = parents[parents[place]]
        place = parents[place]
    return place


def _join(parents: list[int], first: int, second: int) -> None:
    parents[_root(parents, first)] = _root(parents, second)
