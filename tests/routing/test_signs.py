"""Cheap signs: finite for every text, and what their names say."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from octavo.routing.signs import MOST_CHARS, SIGNS, clipped, signs, signs_of


@given(st.text(max_size=400))
def test_every_text_has_as_many_finite_numbers(text: str) -> None:
    values = signs_of(text)
    assert len(values) == len(SIGNS) and np.isfinite(values).all()


def test_names_stand_for_what_is_there() -> None:
    text = "Which of these is NOT a metal?\nA. iron\nB. tin 50\nC. salt\nD. All of the above\nAnswer:"
    found = dict(zip(SIGNS, signs_of(text), strict=True))
    assert found["choices"] == 4 and found["choices_with_digits"] == 0.25
    assert found["negated_loud"] == found["all_of_above"] == found["ends_asking"] == found["asks_what"] == 1
    assert found["code"] == found["dollar"] == found["asks_quantity"] == 0


def test_a_long_text_is_read_at_both_ends() -> None:
    text = "begin " + "x " * 50_000 + "end"
    assert len(clipped(text)) == MOST_CHARS + 1
    assert clipped(text).startswith("begin") and clipped(text).endswith("end")
    assert signs([text, "y"]).shape == (2, len(SIGNS)) and signs([]).shape == (0, len(SIGNS))
