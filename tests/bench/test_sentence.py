"""Where a first sentence ends, and with which piece of the answer that is so."""

from __future__ import annotations

import pytest

from octavo.bench.sentence import FirstSentence


def whole_at(*pieces: str) -> int | None:
    sentence = FirstSentence()
    for number, piece in enumerate(pieces):
        if (found := sentence.feed(piece, number)) is not None:
            return found
    return sentence.close()


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("Hello there. And more.", "Hello there."),
        ("Really?! Yes.", "Really?!"),
        ("Pi is 3.14 or so. Yes.", "Pi is 3.14 or so."),
        ("See example.org for it. Yes.", "See example.org for it."),
        ("Fruit, e.g. apples, is good. Yes.", "Fruit, e.g. apples, is good."),
        ("The U.S. is big. Yes.", "The U.S. is big."),
        ("J. S. Bach wrote it. Yes.", "J. S. Bach wrote it."),
        ("So am I. Yes.", "So am I."),
        ("1. First of all\nthen", "1. First of all\n"),
        ("\n\nHello\nthere", "\n\nHello\n"),
        ('He said "no." Then', 'He said "no."'),
        ("(It was so.) Then", "(It was so.)"),
        ("**Yes!** More", "**Yes!**"),
        ("Well… then", "Well…"),
        ("これは文です。次の文", "これは文です。"),
        ("本当？はい", "本当？"),
        ("... and so. Yes", "... and so."),
        ("Only this one.", "Only this one."),
        ("It was in 1995. Then", "It was in 1995."),
        ("क्या हाल है। ठीक", "क्या हाल है।"),
    ],
)
def test_the_first_sentence_ends_where_a_reader_says(text: str, first: str) -> None:
    mark = max(place for place, char in enumerate(first) if char in ".!?…。！？।\n")
    while mark and first[mark - 1] in ".!?…":
        mark -= 1  # the first of several marks
    assert whole_at(*text) == mark
    assert whole_at(text) == 0
    for cut in range(1, len(text)):
        assert whole_at(text[:cut], text[cut:]) == (0 if mark < cut else 1)


@pytest.mark.parametrize("text", ["", "no end", "3.5", "12. 14.", "...", "\n\n\n", "e.g.", "A.", "!"])
def test_a_text_without_a_whole_sentence_has_none(text: str) -> None:
    assert whole_at(*text) is None
    assert whole_at(text) is None


def test_what_follows_decides_and_the_mark_s_piece_is_told() -> None:
    assert whole_at("It", " is", " 3", ".", "5", " mm", ".", " Yes") == 6
    assert whole_at("It", " is", ".", '"', " Yes") == 2
    assert whole_at("It", " is", ".") == 2
