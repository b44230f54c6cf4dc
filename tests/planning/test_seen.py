"""Requests made of what a server told: what they share, who waits for whom, and how often guesses were right."""

from __future__ import annotations

import msgspec
import pytest

from octavo.bench.watched import Watched
from octavo.engine.messages import Stats
from octavo.planning.seen import guessing_in, load_in
from octavo.protocol.watch import Answered, Asked, Gauges
from tests.planning.watching import SETTING, server


def told(asked: list[Asked], ends: dict[int, tuple[float, int]], **blocks: tuple[int, ...]) -> Watched:
    """`ends`: by number, when the answer was whole, and its tokens. `blocks`: of an answer, as `n3`."""
    found = Watched(url="http://a", length_s=20.0, server=server(SETTING))
    found.asked = {one.id: one for one in asked}
    found.answered = {
        number: Answered(
            id=number,
            end_s=at_s,
            reason="length",
            output_tokens=tokens,
            cached_tokens=0,
            chunks=((at_s, tokens),),
            blocks=blocks.get(f"n{number}", ()),
        )
        for number, (at_s, tokens) in ends.items()
    }
    return found


def one(number: int, at_s: float, tokens: int, *blocks: int, had: int = 0) -> Asked:
    return Asked(
        id=number, at_s=at_s, prompt_tokens=tokens, blocks=blocks, answers=1, max_tokens=100, had=had
    )


def others(first: int, count: int = 10) -> tuple[list[Asked], dict[int, tuple[float, int]]]:
    """So many that share nothing, and come whenever."""
    asked = [one(first + n, 1 + n * n / 10, 20, 1000 + first + n) for n in range(count)]
    return asked, {each.id: (each.at_s + 1.5, 8) for each in asked}


def test_equal_blocks_are_equal_tokens_and_answers_may_be_in_prompts() -> None:
    more, ends = others(10)
    asked = [
        one(1, 0.1, 40, 7, 8),
        one(2, 0.2, 35, 7, 8),
        one(3, 0.3, 36, 7, 9),
        one(4, 0.95, 70, 7, 8, 21, 22),
    ]
    load = load_in(
        told([*asked, *more], {1: (0.9, 24), 2: (1.0, 9), 3: (1.0, 9), 4: (2.0, 9), **ends}, n1=(21, 22))
    )
    first, second, third, fourth = (request.ids or () for request in load.requests[:4])
    assert len(first) == 40 and first[:32] == second[:32] and set(first[32:]).isdisjoint(second[32:])
    assert first[:16] == third[:16] and set(first[16:]).isdisjoint(third[16:])
    assert fourth[:64] == (*first, *[0] * 24) and len(fourth) == 70
    assert load.shared[:4] == [0, 32, 16, 64]
    assert load.clients is None and load.rate == pytest.approx(14 / 20)


def test_what_was_computed_already_is_in_the_prompt_and_what_did_not_end_is_guessed() -> None:
    more, ends = others(10)
    asked = [one(1, -3.0, 20, had=5), one(2, -1.0, 30), one(3, 19.0, 16)]
    load = load_in(told([*asked, *more], {1: (2.0, 12), 2: (4.0, 10), **ends}))
    running, waiting = load.requests[:2]
    assert load.begun == 2 and load.free_tokens == 25
    assert (running.at_s, running.input_tokens, running.output_tokens) == (0.0, 25, 7)
    assert (waiting.input_tokens, waiting.output_tokens) == (30, 10) and 0 < waiting.at_s < 0.001
    assert load.requests[-1].output_tokens == 8  # as those that were seen
    assert load.seen == {request.index for request in load.requests[2:-1]}


def test_another_draw_has_other_times_and_nothing_new_in_a_cache() -> None:
    more, ends = others(10, 12)
    load = load_in(told(more, ends))
    drawn = load.drawn(1)
    assert drawn == load.drawn(1) != load.drawn(2) and load.drawn(0) == load.requests
    assert [request.at_s for request in drawn] == sorted(request.at_s for request in drawn)
    prompts = [request.ids for request in drawn]
    assert len(set(prompts)) == len(prompts)


def test_who_asks_again_at_once_is_a_client() -> None:
    asked, ends = [], {}
    for number in range(30):
        at_s = number % 3 * 0.1 + number // 3 * 1.01
        asked.append(one(number, at_s, 20, number))
        ends[number] = (at_s + 1.0, 8)
    load = load_in(told(asked, ends))
    assert load.clients == 3
    drawn = load.drawn(1)
    assert [request.after for request in drawn[:5]] == [None, None, None, 0, 1] and len(drawn) >= 18


def test_how_often_guesses_were_right() -> None:
    found = told(*others(1))
    fields = dict.fromkeys(Stats.__struct_fields__[:12], 0)
    first = Stats(**fields, reached_at=(0, 0, 0), accepted_at=(0, 0, 0))
    last = msgspec.structs.replace(
        first,
        generation_tokens=150,
        drafts=50,
        accepted_tokens=50,
        reached_at=(50, 20, 0),
        accepted_at=(40, 10, 0),
    )
    assert guessing_in(found) is None
    found.gauges = [Gauges(at_s=0.0, stats=first), Gauges(at_s=1.0, stats=last)]
    guessing = guessing_in(found)
    assert guessing is not None and guessing.drafting == 0.5
    assert guessing.chances == (0.8, 0.5, 0.0) and guessing.goes_on == (0.5,)
