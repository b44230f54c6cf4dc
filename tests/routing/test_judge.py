"""Judges that are good, that guess, and that like what stands first."""

from __future__ import annotations

import asyncio
import random

import pytest

from octavo.errors import RoutingError
from octavo.routing.checks import judge_pairs
from octavo.routing.judge import Judge, Trial, tried, verdict_of

GOOD = {pair.good for pair in judge_pairs()}


def known(prompt: str) -> str:
    """What a judge says who knows the answers."""
    first = prompt.partition("<answer_A>\n")[2].partition("\n</answer_A>")[0]
    return "A" if first in GOOD else "B"


async def knows(prompt: str) -> str:
    return known(prompt)


def trial(judge: Judge) -> Trial:
    return asyncio.run(tried(judge, judge_pairs()))


def test_one_that_knows_is_believed() -> None:
    found = trial(Judge(knows))
    assert (found.precision, found.recall) == (1.0, 1.0)
    found.check("judge")


def test_one_that_is_right_in_nine_of_ten_replies_is_believed_and_its_figures_are_told() -> None:
    source = random.Random(3)

    async def mostly(prompt: str) -> str:
        right = await knows(prompt)
        return right if source.random() < 0.9 else "AB".replace(right, "")

    found = trial(Judge(mostly))
    assert found.precision >= 0.9
    assert found.recall >= 0.6
    found.check("judge")


def test_one_that_likes_what_stands_first_has_said_nothing() -> None:
    async def first(_: str) -> str:
        return "A"

    found = trial(Judge(first))
    assert (found.decided, found.chance) == (0, 1.0)
    with pytest.raises(RoutingError, match="no better than chance: of 40 pairs it said the same of 0"):
        found.check("judge")


def test_one_that_guesses_is_refused_in_99_of_100_trials() -> None:
    passed = 0
    for seed in range(100):
        source = random.Random(seed)

        async def guess(_: str, source: random.Random = source) -> str:
            return source.choice("AB")

        passed += trial(Judge(guess)).chance <= 0.01
    assert passed <= 3  # of 100 with p = 0.01 more than three are met once in fifty


def test_the_tail_is_the_binomial_s() -> None:
    assert Trial(10, 10, 10).chance == pytest.approx(1 / 1024)
    assert Trial(10, 4, 2).chance == pytest.approx(11 / 16)


def test_a_reply_names_one_answer_or_says_nothing() -> None:
    assert [verdict_of(text) for text in ("A", "B.", "[[A]]", "A or B", "neither", "")] == [
        "A", "B", "A", None, None, None,
    ]  # fmt: skip
