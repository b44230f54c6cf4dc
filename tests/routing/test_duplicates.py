"""Near duplicates and the splits that keep them together."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from octavo.routing.duplicates import folds, groups_of, split

STORY = (
    "Anna buys {} apples at the market on Monday and gives {} of them to her two brothers, how many are left"
)


def test_other_numbers_make_no_other_question() -> None:
    groups = groups_of(
        [STORY.format(3, 2), "What is the capital of Peru, and since when?", STORY.format(900, 41)]
    )
    assert groups.tolist() == [0, 1, 0]


def test_two_questions_on_one_passage_stay_together() -> None:
    passage = "The old mill by the river was sold in spring to a family that came from the coast with nine children. "
    groups = groups_of(
        [passage + "Who sold the mill?", passage + "How many came?", "Something else entirely here."]
    )
    assert groups[0] == groups[1] != groups[2]


def test_a_form_that_many_share_is_no_likeness() -> None:
    form = "For which of these scenarios does the main character do something clearly wrong: "
    texts = [
        f"{form} case {chr(97 + n // 26)}{chr(97 + n % 26)} {'x' * n} {'y' * (n + 3)}" for n in range(60)
    ]
    assert len(set(groups_of(texts).tolist())) > 50


def test_the_same_text_twice_is_one_group_however_common() -> None:
    assert set(groups_of(["a b c d e f g"] * 50).tolist()) == {0}


@given(
    st.lists(st.integers(0, 30), min_size=20, max_size=300),
    st.integers(0, 5),
    st.sampled_from([0.5, 0.7, 0.9]),
)
def test_a_group_is_on_one_side_and_seeds_are_kept(names: list[int], seed: int, share: float) -> None:
    groups = np.unique(names, return_inverse=True)[1].astype(np.int64)
    inside, outside = split(groups, share, seed)
    assert sorted([*inside.tolist(), *outside.tolist()]) == list(range(len(groups)))
    assert not set(groups[inside].tolist()) & set(groups[outside].tolist())
    assert len(inside) <= round(share * len(groups))
    assert split(groups, share, seed)[0].tolist() == inside.tolist()
    parts = folds(groups, 5, seed)
    assert all(len(set(parts[groups == one].tolist())) == 1 for one in set(groups.tolist()))
