"""Words and letters of a prompt as hashed counts, weighed by how rare they are. Knows no language and no label.

Words and pairs of words go by CRC-32 into one half of the buckets, runs of 2 to 5 bytes by FNV-1a into the other; each
half is weighed by (1 + ln count) · idf and brought to length 1 (Salton & Buckley 1988; feature hashing: Weinberger et
al. 2009). There is no vocabulary, so nothing of the prompts that were learnt from can be read from a policy.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from octavo.routing.signs import clipped

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["BUCKETS", "HALF", "MET_BYTES", "counts", "known_share", "met", "weighed", "word_places"]

HALF = 1 << 16
"""Buckets of words; letters have as many."""
BUCKETS = 2 * HALF
MET_BYTES = 1 << 17
"""One bit for each place that a word may have: with 20,000 words a stranger is taken for known in 2 % of cases."""
RUNS = (2, 3, 4, 5)
"""Bytes."""

_WORD = re.compile(r"\w+")
_PRIME = np.uint32(16_777_619)
_START = np.uint32(2_166_136_261)


def counts(text: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The buckets that a prompt fills, ascending, and how often. Both [filled]."""
    lower = clipped(text).lower()
    words = _WORD.findall(lower)
    pairs = [f"{first} {second}" for first, second in pairwise(words)]
    named = np.array([zlib.crc32(word.encode()) % HALF for word in (*words, *pairs)], dtype=np.int64)
    letters = np.frombuffer(f" {' '.join(lower.split())} ".encode(), dtype=np.uint8).astype(np.uint32)
    runs = [_run_hashes(letters, length) for length in RUNS if len(letters) >= length]
    found, often = np.unique(np.concatenate([named, *runs]), return_counts=True)
    return found, often.astype(np.float64)


def weighed(
    found: NDArray[np.int64], often: NDArray[np.float64], rarity: NDArray[np.float32]
) -> NDArray[np.float64]:
    """The values of those buckets [filled]; `rarity` [buckets] is 0 for what was never learnt."""
    values = (1.0 + np.log(often)) * rarity[found]
    middle = int(np.searchsorted(found, HALF))
    for part in (values[:middle], values[middle:]):
        length = float(np.sqrt(part @ part))
        if length > 0:
            part /= length
    return values


def word_places(text: str) -> NDArray[np.int64]:
    """Where the prompt's different words stand in the bits of `met`."""
    words = dict.fromkeys(_WORD.findall(clipped(text).lower()))
    return np.array([zlib.crc32(word.encode()) % (8 * MET_BYTES) for word in words], dtype=np.int64)


def met(places: Sequence[NDArray[np.int64]], prompts: int) -> NDArray[np.uint8]:
    """A bit for each word that so many of the prompts have [MET_BYTES]; `places`: `word_places` of each prompt."""
    times = np.bincount(np.concatenate(places), minlength=8 * MET_BYTES)
    return np.packbits(times >= prompts)


def known_share(places: NDArray[np.int64], bits: NDArray[np.uint8]) -> float:
    """What share of a prompt's words was met; 1 for a prompt without words."""
    if not len(places):
        return 1.0
    return float(((bits[places >> 3] >> (7 - (places & 7))) & 1).mean())


def _run_hashes(letters: NDArray[np.uint32], length: int) -> NDArray[np.int64]:
    """FNV-1a of every run of `length` bytes, folded into the second half of the buckets."""
    count = len(letters) - length + 1
    hashes = np.full(count, _START + np.uint32(length), dtype=np.uint32)
    for offset in range(length):
        hashes = (hashes ^ letters[offset : offset + count]) * _PRIME
    return ((hashes ^ (hashes >> np.uint32(16))) % np.uint32(HALF)).astype(np.int64) + HALF
