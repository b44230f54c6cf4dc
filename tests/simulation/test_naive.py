"""The engine that dies: a trace by hand, which share is safe for one length, and how often two unlucky ones meet."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.simulation.naive import NaiveEngine, largest_safe_share
from octavo.simulation.pace import LinearPace
from octavo.workload.request import Part, Request

PACE = LinearPace(per_step_s=0.010)


def request(index: int, at_s: float, prompt: int, output: int) -> Request:
    return Request(
        index=index, at_s=at_s, session=index, parts=(Part(f"own/{index}", prompt),), output_tokens=output
    )


def engine(capacity: int, share: float, restart_s: float = 5.0) -> NaiveEngine:
    admit = int(capacity * share + 1e-9)
    return NaiveEngine(PACE, capacity_tokens=capacity, admit_tokens=admit, restart_s=restart_s)


def test_a_trace_by_hand() -> None:
    """Two prompts of 30 tokens are 60 of 100, below the share of 80; each step adds two. The 21st step after the first
    would hold 102, at 0.21 s. A prompt of 10 that comes at 0.1 s finds 78 and waits; after the restart it is answered
    in 3 steps."""
    outcome = engine(100, 0.8).run([
        request(0, 0.0, 30, 30), request(1, 0.0, 30, 30), request(2, 0.1, 10, 3)
    ])  # fmt: skip
    assert (outcome.answered, outcome.lost, outcome.crashes, outcome.most_tokens) == (1, 2, 1, 100)
    assert outcome.seconds == pytest.approx(0.21 + 5.0 + 0.03)
    assert outcome.lost_share == pytest.approx(2 / 3)
    assert outcome.crashes_per_hour == pytest.approx(3600 / 5.24)


def test_memory_that_just_holds_them_is_enough() -> None:
    two = [request(0, 0.0, 30, 20), request(1, 0.0, 30, 20)]
    assert engine(98, 0.8).run(two).crashes == 0
    assert engine(97, 0.8).run(two).crashes == 1


def test_what_can_never_be_served_is_refused_and_kills_nobody() -> None:
    outcome = engine(100, 0.8).run([
        request(0, 0.0, 81, 2), request(1, 0.0, 50, 52), request(2, 0.0, 50, 51)
    ])  # fmt: skip
    assert (outcome.refused, outcome.answered, outcome.lost) == (2, 1, 0)


@given(
    capacity=st.integers(200, 3000),
    prompt=st.integers(1, 100),
    output=st.integers(1, 100),
    share=st.floats(0.5, 1.0),
    count=st.integers(1, 60),
)
def test_requests_of_one_length_are_lost_just_where_the_formula_says(
    capacity: int, prompt: int, output: int, share: float, count: int
) -> None:
    """They come at once and are taken in as many as the share lets: a batch is lost when it would end beyond the
    memory, and after it comes the next one."""
    admit = int(capacity * share)
    batch = admit // prompt
    lengths = [batch] * (count // batch) + [count % batch]
    lost = sum(size for size in lengths if size * (prompt + output - 1) > capacity)
    naive = NaiveEngine(PACE, capacity_tokens=capacity, admit_tokens=admit)
    outcome = naive.run([request(n, 0.0, prompt, output) for n in range(count)])
    assert (outcome.lost, outcome.answered) == (lost, count - lost)
    if admit < largest_safe_share(capacity, prompt, output) * capacity - 1e-6:
        assert outcome.lost == 0


def test_the_safe_share_is_sharp() -> None:
    """Of 1,000 tokens 3 of 100 + 201 - 1 fit; a fourth prompt must stay out, so less than 0.4 is safe."""
    assert largest_safe_share(1000, 100, 201) == pytest.approx(0.4)
    for share, crashes in ((0.399, 0), (0.4, 1)):
        outcome = engine(1000, share).run([request(n, 0.0, 100, 201) for n in range(4)])
        assert outcome.crashes == crashes


def test_two_at_once_with_drawn_lengths_die_as_often_as_the_closed_form_says() -> None:
    """Answers have n tokens or more with the chance q^(n-1) (geometric). Two that begin together pass the memory when
    both still run in the first step that does not fit: the chance is q^(2 (n-1))."""
    capacity, prompt, stays = 100, 30, 0.95
    fatal = next(step for step in range(1, 200) if 2 * prompt + 2 * (step - 1) > capacity)
    draw = random.Random(5)

    def tokens() -> int:
        longest = capacity - prompt + 1  # alone none passes the memory; that is beyond the fatal step
        return min(1 + int(math.log(1 - draw.random()) / math.log(stays)), longest)

    pairs = 4_000
    asked = [request(n, 10.0 * (n // 2), prompt, tokens()) for n in range(2 * pairs)]
    outcome = engine(capacity, 0.8).run(asked)
    chance = stays ** (2 * (fatal - 1))
    assert fatal == 22 and outcome.lost == 2 * outcome.crashes
    error = math.sqrt(chance * (1 - chance) / pairs)
    assert outcome.crashes / pairs == pytest.approx(chance, abs=4 * error)


def test_who_waits_for_a_lost_answer_comes_all_the_same() -> None:
    follower = Request(
        index=2, at_s=0.0, session=0, parts=(Part("more", 5),), output_tokens=2, after=0, delay_s=1.0
    )
    outcome = engine(100, 0.8).run([request(0, 0.0, 30, 30), request(1, 0.0, 30, 30), follower])
    assert (outcome.lost, outcome.answered) == (2, 1)
