"""Prompt lookup, against looking at every earlier place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.speculation.drafter import Text
from octavo.speculation.ngram import NgramDrafter, NgramIndex


def looked_up(tokens: list[int], least: int, most: int) -> int:
    """How many tokens before the end were the same, at the best of the newest eight places."""
    end = len(tokens)
    if end < least:
        return 0
    places = [at for at in range(least, end) if tokens[at - least : at] == tokens[end - least :]][-8:]
    lengths = []
    for at in places:
        same = least
        while same < most and same < at and tokens[at - same - 1] == tokens[end - same - 1]:
            same += 1
        lengths.append(same)
    return max(lengths, default=0)


@given(
    st.lists(st.integers(0, 2), max_size=60),
    st.integers(1, 4),
    st.integers(0, 6),
    st.lists(st.integers(1, 9), max_size=12),
)
def test_the_longest_of_the_newest_places(
    tokens: list[int], least: int, wider: int, pieces: list[int]
) -> None:
    """The text grows in pieces, as an answer does."""
    index, most = NgramIndex(least, least + wider), least + wider
    for end in sorted({min(sum(pieces[:number]), len(tokens)) for number in range(len(pieces) + 1)}):
        text = tokens[:end]
        guess, same = index.guess(text, 5)
        assert same == looked_up(text, least, most)
        assert len(guess) == (5 if same else 0)
        if same:  # it goes on from some place where so many tokens were the same
            starts = [at for at in range(same, end) if text[at - same : at] == text[end - same :]]
            assert any((text[at:] + guess)[:5] == guess for at in starts)


def test_a_loop_is_guessed_beyond_its_end() -> None:
    guess, same = NgramIndex(2, 16).guess([9, 1, 2, 3, 1, 2, 3], 8)
    assert (guess, same) == ([1, 2, 3, 1, 2, 3, 1, 2], 3)


def test_each_text_has_its_own_memory() -> None:
    drafter = NgramDrafter()
    texts = [Text([1, 2, 3, 1, 2], 5, ""), Text([1, 2, 4, 1, 2], 5, ""), Text([7, 8, 9], 3, "")]
    guesses = drafter.draft(texts, 2)
    assert [guess.tokens for guess in guesses] == [(3, 1), (4, 1), ()]
    texts[0].tokens += [3, 1]
    assert drafter.draft(texts, 1)[0].tokens == (2,)
    assert drafter.draft(texts, 1)[0].same > guesses[0].same


@pytest.mark.parametrize(("least", "most"), [(0, 3), (4, 3)])
def test_lengths_that_make_no_sense(least: int, most: int) -> None:
    with pytest.raises(ValueError, match=f"least is {least}"):
        NgramDrafter(least, most)
