"""What a client expects as the answer: from its beginning on, and found again behind what is different."""

from __future__ import annotations

from octavo.speculation.drafter import Text
from octavo.speculation.prediction import PredictionDrafter

PROMPT = [1, 2, 3]
EXPECTED = tuple(range(100, 140))


def guessed(answer: list[int]) -> list[tuple[int, ...]]:
    """The guesses after each token of the answer; the first of each step."""
    drafter, text = PredictionDrafter(), Text(list(PROMPT), len(PROMPT), prediction=EXPECTED)
    first = []
    for token in answer:
        text.tokens.append(token)
        found = drafter.draft([text], 3)[0]
        first.append(found[-1].tokens if found else ())
    return first


def test_it_is_followed_from_the_answers_first_token_on() -> None:
    assert guessed([100, 101, 102]) == [(101, 102, 103), (102, 103, 104), (103, 104, 105)]


def test_it_is_found_again_behind_a_change() -> None:
    assert guessed([100, 101, 50, 103])[-1] == (104, 105, 106)
    assert guessed([50, 100])[-1] == (101, 102, 103)
    far = guessed([100, 101, *range(50, 60), 130, 131])
    assert far[-2] == () and far[-1] == (132, 133, 134)


def test_it_ends_where_the_prediction_ends() -> None:
    assert guessed(list(EXPECTED))[-3:] == [(138, 139), (139,), ()]


def test_texts_without_one_have_no_guesses() -> None:
    texts = [Text([1, 2], 1), Text([1, 100], 1, prediction=EXPECTED)]
    found = PredictionDrafter().draft(texts, 2)
    assert found[0] == [] and found[1][0].tokens == (101, 102)
