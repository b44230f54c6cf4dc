"""Prompt lookup, against looking at every earlier place."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.speculation.drafter import Guess, Text
from octavo.speculation.ngram import ALIGNED, RUN, Lookup, NgramDrafter


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


def of_source(guesses: list[Guess], source: int) -> Guess | None:
    return next((guess for guess in guesses if guess.source == source), None)


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
    most = least + wider
    text: list[int] = []
    lookup = Lookup(text, least, most)
    for end in sorted({min(sum(pieces[:number]), len(tokens)) for number in range(len(pieces) + 1)}):
        text += tokens[len(text) : end]
        if not text:
            continue
        found = of_source(lookup.guesses(text, 5), RUN)
        same = looked_up(text, least, most)
        assert (found.same if found else 0) == same
        for guess in lookup.guesses(text, 5):
            assert len(guess.tokens) == 5
        if found:  # it goes on from some place where so many tokens were the same
            guessed = list(found.tokens)
            starts = [at for at in range(same, end) if text[at - same : at] == text[end - same :]]
            assert any((text[at:] + guessed)[:5] == guessed for at in starts)


def test_a_loop_is_guessed_beyond_its_end() -> None:
    tokens = [9, 1, 2, 3, 1, 2, 3]
    [found] = Lookup(tokens, 2, 16).guesses(tokens, 8)
    assert (found.tokens, found.same) == ((1, 2, 3, 1, 2, 3, 1, 2), 3)


def test_where_other_places_go_on_otherwise_is_doubtful() -> None:
    tokens = [1, 2, 5, 7, 1, 2, 6, 7, 9, 1, 2]
    [found] = Lookup(tokens, 2, 16).guesses(tokens, 2)
    assert found.tokens == (6, 7) and found.elsewhere is not None
    assert found.elsewhere.at(0) == (2 / 6, math.log1p(1), 2 / 16)
    assert found.elsewhere.at(1) == (0, math.log1p(2), 0)


SOURCE = list(range(100, 130))


def goes_on(answer: list[int]) -> list[Guess]:
    """The guesses for an answer to a prompt that ends with a number of its own and has SOURCE before it."""
    tokens = [*SOURCE, 1]
    lookup = Lookup(tokens, 2, 16)
    found = lookup.guesses(tokens, 4)
    for token in answer:
        tokens.append(token)
        found = lookup.guesses(tokens, 4)
    return found


@pytest.mark.parametrize(
    ("changed", "after"),
    [
        ([50, 107], 108),  # another token instead of one
        ([50, 51, 107], 108),  # two instead of one
        ([50, 106], 107),  # one more
        ([107], 108),  # one less
        ([110], 111),  # some less
        ([50, 51, 52, 109], 110),
    ],
)
def test_a_text_comes_back_to_what_it_copies(changed: list[int], after: int) -> None:
    """One token of it is enough, where two are needed to find it anywhere."""
    found = goes_on([*SOURCE[:6], *changed])
    aligned = of_source(found, ALIGNED)
    assert aligned is not None and aligned.tokens[0] == after and aligned.same == 1
    assert of_source(goes_on([changed[-1]]), ALIGNED) is None  # it was nowhere before


def test_a_text_that_has_left_is_not_looked_for() -> None:
    assert of_source(goes_on([*SOURCE[:6], *range(50, 60), 108]), ALIGNED) is None
    assert of_source(goes_on([*SOURCE[:6], 50, 125]), ALIGNED) is None  # too far away


def test_the_nearest_place_of_several() -> None:
    tokens = [1, 2, 3, 4, 5, 7, 6, 7, 8, 9, 90]
    lookup = Lookup(tokens, 2, 16)
    found = lookup.guesses(tokens, 4)
    for token in [1, 2, 3, 4, 60, 7]:  # 60 stands for 5, so 7 is the one behind it
        tokens.append(token)
        found = lookup.guesses(tokens, 2)
    aligned = of_source(found, ALIGNED)
    assert aligned is not None and aligned.tokens == (6, 7)


def test_each_text_has_its_own_memory() -> None:
    drafter = NgramDrafter()
    texts = [Text([1, 2, 3, 1, 2], 5), Text([1, 2, 4, 1, 2], 5), Text([7, 8, 9], 3)]
    guesses = drafter.draft(texts, 2)
    assert [[guess.tokens for guess in found] for found in guesses] == [[(3, 1)], [(4, 1)], []]
    texts[0].tokens += [3, 1]
    [again] = drafter.draft(texts, 1)[0]
    assert again.tokens == (2,) and again.same > guesses[0][0].same
    drafter.ended(texts[0])
    assert not texts[0].memory


@pytest.mark.parametrize(("least", "most"), [(0, 3), (4, 3)])
def test_lengths_that_make_no_sense(least: int, most: int) -> None:
    with pytest.raises(ValueError, match=f"least is {least}"):
        NgramDrafter(least, most)
