"""Earlier answers as guesses: of one scope only, the newest first, and no more of them than were asked for."""

from __future__ import annotations

import math
import random

from octavo.speculation.drafter import Several, Text
from octavo.speculation.ngram import NgramDrafter
from octavo.speculation.suffix import SuffixDrafter


def text(tokens: list[int], prompt_tokens: int = 0, scope: str = "") -> Text:
    return Text(tokens, prompt_tokens, scope)


def test_an_earlier_answer_of_the_same_scope_is_found() -> None:
    drafter = SuffixDrafter()
    drafter.ended(text([50, 51, 52, 1, 2, 3, 4, 5, 6], 3, "a"))
    [[mine], other, short] = drafter.draft(
        [text([9, 1, 2, 3], 1, "a"), text([9, 1, 2, 3], 1, "b"), text([2, 3], 1, "a")], 2
    )
    assert mine.tokens == (4, 5) and mine.same == 3
    assert other == short == []
    [[first]] = drafter.draft([text([7, 50, 51, 52], 4, "a")], 8)  # from the prompt's last tokens
    assert first.tokens == (1, 2, 3, 4, 5, 6)


def test_the_longest_match_wins_and_of_equal_ones_the_newest() -> None:
    drafter = SuffixDrafter()
    drafter.ended(text([8, 1, 2, 3, 40]))
    drafter.ended(text([9, 1, 2, 3, 41]))
    [[newest]] = drafter.draft([text([5, 1, 2, 3])], 1)
    assert newest.tokens == (41,) and newest.elsewhere is not None
    assert newest.elsewhere.at(0) == (3 / 8, math.log1p(1), 3 / 16)
    [[longer]] = drafter.draft([text([8, 1, 2, 3])], 1)
    assert longer.tokens == (40,) and longer.same == 4


def test_old_answers_are_forgotten_whole() -> None:
    drafter = SuffixDrafter(most_tokens=100)
    choose = random.Random(0)
    for number in range(50):
        drafter.ended(text([choose.randrange(5) for _ in range(20)] + [100 + number], 0, "a"))
    past = drafter._scopes["a"]
    assert past._tokens <= 100 and len(past._texts) == 4
    kept = {id(one) for one in past._texts}
    assert {id(tokens) for places in past._places.values() for tokens, _ in places} <= kept
    assert all(past._places.values())


def test_scopes_are_limited() -> None:
    drafter = SuffixDrafter()
    for number in range(100):
        drafter.ended(text([1, 2, 3, 4], 0, str(number)))
    assert len(drafter._scopes) == 64
    assert drafter.draft([text([1, 2, 3], 0, "0")], 1) == [[]]
    [[kept]] = drafter.draft([text([1, 2, 3], 0, "99")], 1)
    assert kept.tokens == (4,)


def test_several_drafters_keep_their_sources_apart() -> None:
    both = Several(NgramDrafter(), SuffixDrafter())
    both.ended(text([7, 8, 1, 2, 3, 30]))
    assert len(both.priors) == 3 and both.name == "ngram+suffix"
    [own, past, nothing] = both.draft(
        [text([5, 1, 2, 3, 20, 5, 1, 2, 3]), text([2, 3, 20, 7, 8, 1, 2, 3]), text([40, 41])], 1
    )
    assert [(guess.tokens, guess.source, guess.same) for guess in own] == [((20,), 0, 4), ((30,), 2, 3)]
    assert [(guess.tokens, guess.source, guess.same) for guess in past] == [((20,), 0, 2), ((30,), 2, 5)]
    assert nothing == []
