"""Tokens of events: by the most exact thing that the server tells, and never another sum than it says."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bench.counting import Counts, count_tokens


def count(
    characters: Sequence[int],
    total: int | None = None,
    *,
    finish: int | None = None,
    usage: Sequence[int | None] = (),
    ids: Sequence[int | None] = (),
    logprobs: Sequence[int | None] = (),
) -> Counts:
    nothing = [None] * len(characters)
    return count_tokens(
        characters,
        finish,
        total=total,
        usage=usage or nothing,
        ids=ids or nothing,
        logprobs=logprobs or nothing,
    )


@pytest.mark.parametrize(
    ("found", "tokens", "total", "counted"),
    [
        # An event is a token.
        (count([0, 4, 5, 3], 3), [0, 1, 1, 1], 3, "chunks"),
        # The end-of-text token has no text, and the last event is its own.
        (count([4, 5, 0], 3, finish=2), [1, 1, 1], 3, "chunks"),
        # A missing token although the last event has text: more than one token in an event.
        (count([4, 4, 4], 4, finish=2), [1, 2, 1], 4, "spread"),
        # Coalesced: by characters.
        (count([4, 8, 4], 8), [2, 4, 2], 8, "spread"),
        (count([0, 1, 1, 1], 2), [0, 1, 0, 1], 2, "spread"),
        # What the server says beats what is guessed.
        (count([4, 8, 4], 8, usage=[1, 7, 8]), [1, 6, 1], 8, "usage"),
        (count([4, 8, 4], 8, ids=[1, 6, 1]), [1, 6, 1], 8, "ids"),
        (count([4, 8, 4], 8, logprobs=[1, 6, 1]), [1, 6, 1], 8, "logprobs"),
        (count([4, 8, 4], 8, ids=[1, 6, 1], usage=[2, 4, 8]), [2, 2, 4], 8, "usage"),
        # A token without text counts where it came.
        (count([0, 0, 4], 3, usage=[0, 1, 3]), [0, 1, 2], 3, "usage"),
        # The end's token is not among the ids.
        (count([4, 4, 0], 3, finish=2, ids=[1, 1, 0]), [1, 1, 1], 3, "ids"),
        # No use: some events lack it, it falls, it is the whole each time, it is more than the whole.
        (count([4, 4], 2, usage=[1, None]), [1, 1], 2, "chunks"),
        (count([4, 4, 4], 3, usage=[2, 1, 3]), [1, 1, 1], 3, "chunks"),
        (count([4, 4, 4], 3, usage=[3, 3, 3]), [1, 1, 1], 3, "chunks"),
        (count([4, 4], 2, ids=[2, 1]), [1, 1], 2, "chunks"),
        (count([4, 4], 2, ids=[2, 0]), [1, 1], 2, "chunks"),
        # Without a count of the whole.
        (count([0, 4, 4]), [0, 1, 1], None, "events"),
        (count([4, 4], ids=[1, 3]), [1, 3], 4, "ids"),
        (count([0, 0], 0), [0, 0], 0, "none"),
        (count([]), [], None, "none"),
        # Tokens but no text at all: they came by the end.
        (count([0, 0], 2, finish=1), [0, 2], 2, "spread"),
    ],
)
def test_counts(found: Counts, tokens: list[int], total: int | None, counted: str) -> None:
    assert (found.tokens, found.total, found.counted) == (tokens, total, counted)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=20), st.integers(0, 100), st.booleans())
def test_the_sum_is_the_server_s_and_none_is_negative(characters: list[int], total: int, ends: bool) -> None:
    found = count(characters, total, finish=len(characters) - 1 if ends else None)
    assert sum(found.tokens) == total
    assert min(found.tokens) >= 0
