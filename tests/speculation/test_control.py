"""How many guesses a step tries: what is worth its time, by how often they were right and how full the step is."""

from __future__ import annotations

import math

import pytest

from octavo.speculation.control import Control, Offer
from octavo.speculation.drafter import Elsewhere, Guess, Prior, Text
from octavo.timing.step_time import StepLoad, StepTime, TimedLoad

STEP_S, TOKEN_S, MARGIN = 0.004, 0.001, 1.15
SUREST = 0.99


def step_time() -> StepTime:
    """A machine whose steps take 4 ms and 1 ms a token."""
    loads = [StepLoad(n, n, n, 0) for n in (1, 2, 4, 8, 16, 32, 64)]
    loads += [StepLoad(n, 1, 0, n * n // 2) for n in (16, 64, 256)]
    return StepTime([TimedLoad(load, STEP_S + TOKEN_S * load.tokens) for load in loads])


def load_of(streams: int) -> StepLoad:
    return StepLoad(streams, streams, streams, 0)


def even(chance: float, record: float = 0.0) -> Prior:
    """Every token is right with this chance; less where the record is worse than usual."""
    return Prior(math.log(chance / (1 - chance)) - 0.4 * record, 0.0, record, 0.0, 0.0, 0.0)


def guess(count: int = 8, source: int = 0, same: int = 4) -> Guess:
    return Guess(tuple(range(count)), same, source)


def counts(control: Control, streams: int, tokens: int = 8, room: int = 100) -> list[int]:
    offers = [Offer(Text([], 0), guess(tokens)) for _ in range(streams)]
    return control.divide(offers, load_of(streams), room, None)


def best(chance: float, streams: int) -> int:
    """By trying every number for all streams alike, as if a token cost a little more."""

    def rate(each: int) -> float:
        expected = streams * sum(chance**place for place in range(each + 1))
        return expected / (STEP_S + TOKEN_S * streams * (1 + MARGIN * each))

    return max(range(9), key=rate)


@pytest.mark.parametrize("chance", [0.1, 0.3, 0.5, 0.7, 0.9, 0.99])
@pytest.mark.parametrize("streams", [1, 4, 16, 32, 64])
def test_what_makes_the_most_tokens_a_second(chance: float, streams: int) -> None:
    control = Control([even(chance)], step_time())
    found = counts(control, streams, room=1000)
    assert abs(sum(found) / streams - best(min(chance, SUREST), streams)) <= 1
    assert (control.price(load_of(streams)) < min(chance, SUREST)) == bool(sum(found))


def test_a_full_batch_leaves_nothing_to_gain() -> None:
    totals = [
        sum(counts(Control([even(0.8)], step_time()), streams, room=1000)) / streams
        for streams in (1, 2, 4, 8, 16, 32)
    ]
    assert totals == sorted(totals, reverse=True) and totals[0] >= 4 and totals[-1] == 0


def test_the_surest_guesses_come_first() -> None:
    control = Control([even(0.3), even(0.9)], step_time())
    offers = [Offer(Text([], 0), guess(source=source)) for source in (0, 1)]
    found = control.divide(offers, load_of(2), 4, None)
    assert found[1] > found[0]
    assert control.divide(offers, load_of(2), 2, None) == [0, 2]
    text = Text([], 0)
    assert control.best(text, [guess(source=0), guess(source=1)]).guess.source == 1
    assert control.best(text, [guess(source=0), guess(1, source=1)]).guess.source == 1
    assert control.best(text, [guess(source=0)]).guess.source == 0


def test_what_makes_a_guess_surer() -> None:
    """More equal tokens before it, more places that go on alike, fewer and shorter ones that do not."""
    control, text = Control([Prior(-1.0, 1.0, 1.0, -2.0, 0.5, -1.0)], step_time()), Text([], 0)
    by_level = [control.chance(text, guess(same=same), 0) for same in range(18)]
    assert by_level == sorted(by_level) and by_level[0] < by_level[8] < by_level[16] == by_level[17]
    assert control.chance(text, guess(same=2), 3) == control.chance(text, guess(same=5), 0)

    def among(*places: tuple[int, int]) -> float:
        """The first of these is the guess's own: what comes there, and how many tokens are the same before it."""
        others = [([token, 9], 0, same) for token, same in places]
        one = Guess((places[0][0],), 4, elsewhere=Elsewhere((places[0][0],), others))
        return control.chance(text, one, 0)

    assert among((1, 4), (1, 3)) > among((1, 4)) > among((1, 4), (2, 1)) > among((1, 4), (2, 3))
    assert Elsewhere((1, 2), [([1], 0, 4), ([1, 3], 0, 2)]).at(1) == (0.5, 0.0, 2 / 16)


def test_a_target_is_kept() -> None:
    control = Control([even(0.95)], step_time())
    offers = [Offer(Text([], 0), guess())]
    assert control.divide(offers, load_of(1), 100, None) == [8]
    [count] = control.divide(offers, load_of(1), 100, 0.0085)
    assert STEP_S + TOKEN_S * (1 + count) <= 0.0085
    assert control.divide(offers, load_of(1), 100, -1.0) == [0]


class Stream:
    """A text that is guessed at in each step, and goes on as guessed or otherwise."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self.text = Text([], 0)

    def step(self, *, right: bool) -> int:
        """How many tokens are tried."""
        control, text = self._control, self.text
        [count] = control.divide([Offer(text, guess())], load_of(1), 100, None)
        text.guesses, text.guessed_at = [guess()], len(text.tokens)
        text.tokens += range(count + 1) if right else [99]
        control.learn(text)
        return count


def test_it_follows_within_twenty_steps() -> None:
    """Right, then wrong, then right again: what is not tried is learned from too."""
    stream = Stream(Control([even(0.7, record=3.0)], step_time()))
    for _ in range(20):
        stream.step(right=True)
    assert stream.step(right=True) == 8
    assert [stream.step(right=False) for _ in range(20)][-1] == 0
    tokens = stream.text.tokens
    for _ in range(20):  # nothing is tried, and yet one token of each guess is seen to be right
        stream.text.guesses, stream.text.guessed_at = [guess()], len(tokens)
        tokens.append(0)
        stream._control.learn(stream.text)
    assert stream.step(right=True) >= 2


def test_what_one_text_does_is_its_own() -> None:
    """Another one, where guesses are right, is not kept from trying them."""
    control = Control([even(0.7, record=3.0)], step_time())
    good, bad = Stream(control), Stream(control)
    for _ in range(40):
        good.step(right=True)
        bad.step(right=False)
    assert good.step(right=True) >= 4 and bad.step(right=False) == 0


def test_only_up_to_the_first_wrong_token_is_learned_from() -> None:
    control, text = Control([even(0.5)], step_time()), Text([0, 1, 99, 3, 4], 0)
    text.guesses = [guess()]
    before = control.chance(text, guess(), 0)
    control.learn(text)
    assert text.records[0] == pytest.approx(((0.4 * 0.8 + 0.2) * 0.8 + 0.2) * 0.8)  # right, right, wrong
    assert control.chance(text, guess(), 0) > before and text.guesses == []


def test_how_deep_a_model_should_guess() -> None:
    asked = [Text([], 0)]

    def depth(chance: float, draft_s: float, streams: int = 1) -> int:
        texts = [Text([], 0) for _ in range(streams)]
        control = Control([even(chance)], step_time())
        return control.depth(texts, guess(16, same=0), load_of(streams), draft_s)

    assert depth(0.9, 0.0005) > depth(0.9, 0.002) > 0
    assert depth(0.9, 0.0005) > depth(0.6, 0.0005) > depth(0.1, 0.0005) == 0
    assert depth(0.8, 0.001) > depth(0.8, 0.001, streams=16)
    assert depth(0.9, 0.006) == 0
    control = Control([even(0.9, record=8.0)], step_time())
    assert control.depth([], guess(16), load_of(1), 0.001) == 0
    asked[0].records[0] = 0.0
    assert control.depth(asked, guess(16), load_of(1), 0.002) == 0
    steps = 0
    while not control.depth(asked, guess(16), load_of(1), 0.002):  # it is asked again some time
        steps += 1
        assert steps < 1000
    assert steps > 10


def test_a_model_is_asked_where_it_knows_better() -> None:
    control, text = Control([even(0.5), even(0.8)], step_time()), Text([], 0)
    model = guess(16, source=1, same=0)
    assert control.prefers(text, model)
    text.guesses = [guess()]
    assert control.prefers(text, model)
    text.biases[0] = 4.0
    assert not control.prefers(text, model)


def test_before_anything_is_known_of_the_machine() -> None:
    assert 1 <= counts(Control([even(0.7)], StepTime()), 1)[0] <= 8
    assert sum(counts(Control([even(0.7)], StepTime()), 32, room=1000)) == 0


def test_forced() -> None:
    control = Control([even(0.01)], StepTime(), fixed=4)
    assert control.price(load_of(64)) == 0
    assert counts(control, 3, room=10) == [4, 4, 2]
    assert control.depth([Text([], 0)], guess(16), load_of(64), 1.0) == 4
