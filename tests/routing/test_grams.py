"""Hashed counts against a naive second implementation."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from octavo.routing.grams import BUCKETS, HALF, RUNS, counts, known_share, met, weighed, word_places

PLAIN = st.text(alphabet="abc dé1?", max_size=60)


def naive(text: str) -> Counter[int]:
    words = re.findall(r"\w+", text.lower())
    found = Counter(zlib.crc32(word.encode()) % HALF for word in words)
    found.update(zlib.crc32(f"{first} {second}".encode()) % HALF for first, second in pairwise(words))
    letters = f" {' '.join(text.lower().split())} ".encode()
    for length in RUNS:
        for start in range(len(letters) - length + 1):
            value = 2_166_136_261 + length
            for byte in letters[start : start + length]:
                value = ((value ^ byte) * 16_777_619) % 2**32
            found[(value ^ (value >> 16)) % HALF + HALF] += 1
    return found


@given(PLAIN)
def test_counts_are_the_naive_ones(text: str) -> None:
    found, often = counts(text)
    assert dict(zip(found.tolist(), often.tolist(), strict=True)) == naive(text)
    assert (np.diff(found) > 0).all()


@given(PLAIN)
def test_both_halves_have_length_1(text: str) -> None:
    found, often = counts(text)
    values = weighed(found, often, np.ones(BUCKETS, dtype=np.float32))
    for part in (values[found < HALF], values[found >= HALF]):
        assert not len(part) or np.isclose(part @ part, 1)
    assert not weighed(found, often, np.zeros(BUCKETS, dtype=np.float32)).any()


def test_words_that_were_met_often_enough_are_known() -> None:
    places = [word_places(text) for text in ("the red house", "The house", "a tree")]
    bits = met(places, 2)
    assert known_share(word_places("house THE"), bits) == 1
    assert known_share(word_places("the tree"), bits) == 0.5
    assert known_share(word_places("?!"), bits) == 1
