"""How many guesses a step tries: what is worth its time, by how often they were right and how full the step is."""

from __future__ import annotations

import pytest

from octavo.speculation.control import LEVELS, Control, Offer
from octavo.speculation.drafter import Text
from octavo.timing.step_time import StepLoad, StepTime, TimedLoad

STEP_S, TOKEN_S, MARGIN = 0.004, 0.001, 1.15


def step_time() -> StepTime:
    """A machine whose steps take 4 ms and 1 ms a token."""
    loads = [StepLoad(n, n, n, 0) for n in (1, 2, 4, 8, 16, 32, 64)]
    loads += [StepLoad(n, 1, 0, n * n // 2) for n in (16, 64, 256)]
    return StepTime([TimedLoad(load, STEP_S + TOKEN_S * load.tokens) for load in loads])


def load_of(streams: int) -> StepLoad:
    return StepLoad(streams, streams, streams, 0)


def counts(control: Control, streams: int, tokens: int = 8, room: int = 100) -> list[int]:
    texts = [Text([], 0, "") for _ in range(streams)]
    return control.divide([Offer(text, 0, 4, tokens) for text in texts], load_of(streams), room, None)


def best(chance: float, streams: int) -> int:
    """By trying every number for all streams alike, as if a token cost a little more."""

    def rate(each: int) -> float:
        expected = streams * sum(chance**place for place in range(each + 1))
        return expected / (STEP_S + TOKEN_S * streams * (1 + MARGIN * each))

    return max(range(9), key=rate)


@pytest.mark.parametrize("chance", [0.1, 0.3, 0.5, 0.7, 0.9, 0.99])
@pytest.mark.parametrize("streams", [1, 4, 16, 32, 64])
def test_what_makes_the_most_tokens_a_second(chance: float, streams: int) -> None:
    control = Control([[chance] * LEVELS], step_time())
    found = counts(control, streams, room=1000)
    assert abs(sum(found) / streams - best(min(chance, 0.98), streams)) <= 1
    assert (control.price(load_of(streams)) < chance) == bool(sum(found))


def test_a_full_batch_leaves_nothing_to_gain() -> None:
    totals = [
        sum(counts(Control([[0.8] * LEVELS], step_time()), streams, room=1000)) / streams
        for streams in (1, 2, 4, 8, 16, 32)
    ]
    assert totals == sorted(totals, reverse=True) and totals[0] >= 4 and totals[-1] == 0


def test_the_surest_guesses_come_first() -> None:
    control = Control([[0.3] * LEVELS, [0.9] * LEVELS], step_time())
    texts = [Text([], 0, ""), Text([], 0, "")]
    found = control.divide([Offer(texts[0], 0, 4, 8), Offer(texts[1], 1, 4, 8)], load_of(2), 4, None)
    assert found[1] > found[0]
    assert control.divide([Offer(texts[0], 0, 4, 8), Offer(texts[1], 1, 4, 8)], load_of(2), 2, None) == [0, 2]


def test_a_target_is_kept() -> None:
    text = Text([], 0, "")
    control = Control([[0.95] * LEVELS], step_time())
    assert control.divide([Offer(text, 0, 4, 8)], load_of(1), 100, None) == [8]
    [count] = control.divide([Offer(text, 0, 4, 8)], load_of(1), 100, 0.0085)
    assert STEP_S + TOKEN_S * (1 + count) <= 0.0085


def test_it_follows_within_twenty_steps() -> None:
    """Wrong for a while, then right."""
    control, text = Control([[0.7] * LEVELS], step_time()), Text([], 0, "")

    def step(right: bool) -> int:
        [count] = control.divide([Offer(text, 0, 4, 8)], load_of(1), 100, None)
        if count:
            control.learn(Offer(text, 0, 4, 8), count, count if right else 0)
        return count

    assert step(right=True) >= 2
    for _ in range(20):
        step(right=True)
    assert step(right=True) == 8
    wrong = [step(right=False) for _ in range(20)]
    assert wrong[-1] == 0


def test_who_was_wrong_is_asked_again_some_time() -> None:
    control, text, other = Control([[0.6] * LEVELS], step_time()), Text([], 0, ""), Text([], 0, "")
    while (control.divide([Offer(text, 0, 4, 8)], load_of(1), 100, None))[0]:
        control.learn(Offer(text, 0, 4, 8), 1, 0)
        control.learn(Offer(other, 0, 4, 8), 8, 6)  # others are right
    steps = 0
    while not control.divide([Offer(text, 0, 4, 8)], load_of(1), 100, None)[0]:
        steps += 1
        assert steps < 1000
    assert steps > 20


def test_before_anything_is_known_of_the_machine() -> None:
    assert 1 <= counts(Control([[0.7] * LEVELS], StepTime()), 1)[0] <= 8
    assert sum(counts(Control([[0.7] * LEVELS], StepTime()), 32, room=1000)) == 0


def test_forced() -> None:
    control = Control([[0.01] * LEVELS], StepTime(), fixed=4)
    assert control.price(load_of(64)) == 0
    assert counts(control, 3, room=10) == [4, 4, 2]
