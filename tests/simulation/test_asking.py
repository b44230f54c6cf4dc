"""Several answers and beams: blocks by hand, the real pool's sharing, and what is recorded of such a request."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from octavo.backends.base import Limits
from octavo.engine.messages import Add
from octavo.errors import InvalidParameter
from octavo.scheduling.settings import SchedulerConfig
from octavo.simulation.asking import Asking
from octavo.simulation.backend import SimulatedBackend
from octavo.simulation.cluster import Cluster
from octavo.simulation.draws import candidates
from octavo.simulation.pace import LinearPace
from octavo.simulation.replica import Replica
from octavo.simulation.routers import ROUTERS
from octavo.simulation.run import simulate
from octavo.timing.clock import ManualClock
from octavo.workload.request import Part, Request

PACE = LinearPace(per_step_s=0.010)
Candidates = Callable[[int, int, int, int], tuple[tuple[int, float], ...]]


def replica(blocks: int = 1000, **changes: object) -> Replica:
    limits = Limits(num_blocks=blocks, block_size=16, max_slots=64, max_step_tokens=512, max_model_len=4096)
    return Replica(SchedulerConfig(limits, 1, (), **changes), PACE, ManualClock())  # type: ignore[arg-type]


def request(index: int, tokens: int, output: int, at_s: float = 0.0) -> Request:
    return Request(
        index=index, at_s=at_s, session=index, parts=(Part(f"own/{index}", tokens),), output_tokens=output
    )


def steps(asking: Asking, tokens: int, output: int, found: Candidates = candidates) -> Iterator[Replica]:
    """After each step of one request's."""
    one = replica()
    assert isinstance(one.engine.backend, SimulatedBackend)
    one.engine.backend.candidates = found
    asked = request(0, tokens, output)
    one.add(Add("0", tuple(range(1000, 1000 + tokens)), asking.params(asked), 0.0))
    while not one.idle:
        one.advance()
        one.engine.check()
        yield one


def test_four_answers_hold_the_prompt_once_and_a_tail_each() -> None:
    """A prompt of 40 tokens fills two blocks and 8 places of a third. The first answer token to be stored copies that
    third block for all answers but one; 8 tokens later each needs a block more."""
    held = [one.stats.blocks_used for one in steps(Asking(n=4), 40, 20)]
    assert held == [3, *[2 + 4] * 8, *[2 + 8] * 10, 0]


def test_what_sharing_saved_is_what_the_sum_says() -> None:
    """The same blocks over the 19 steps whose end another one saw; unshared, four sequences would hold 3 or 4 each."""
    *_, last = steps(Asking(n=4), 40, 20)
    held = 3 + 8 * 6 + 10 * 10
    apart = 12 + 8 * 12 + 10 * 16
    assert last.engine.report().sharing_saved == pytest.approx((apart - held) / apart)


def only_first(seed: int, position: int, last: int, count: int) -> tuple[tuple[int, float], ...]:
    """Both that live on come from the likelier beam: its second best is better than the best of the other."""
    logprobs = (-0.1, -0.2) if last % 2 == 0 else (-9.0, -10.0)
    tail = tuple((10_000 + place, -50.0 - place) for place in range(count - 2))
    return ((2 * position, logprobs[0]), (2 * position + 1, logprobs[1]), *tail)


def each_its_own(seed: int, position: int, last: int, count: int) -> tuple[tuple[int, float], ...]:
    """Every beam lives on: its best token is nearly certain, all others are not."""
    first = last * 8 % (1 << 30) if position == 40 else last
    if position == 40:  # the only choice: as many beams as there may be
        return tuple((first + place, -1.0 - place / 100) for place in range(count))
    return ((last, -0.001), *((5_000_000 + place, -99.0 - place) for place in range(count - 1)))


def test_beams_of_one_parent_share_all_but_the_block_they_write() -> None:
    """With a width of 2 the winner's whole answer is shared, and within a step each of the two has a copy of the block
    that it writes: one more than the tokens of one answer fill. At its end the loser's is free again."""
    within, after = [], []
    for one in steps(Asking(beam_width=2), 40, 30, only_first):
        after.append(one.stats.blocks_used)
        within.append(one.engine.report().now.allocated // 16)
    filled = [-(-stored // 16) for stored in range(41, 70)]
    assert after == [3, *filled[:-1], 0]
    assert within == [3, *(blocks + 1 for blocks in filled[:-1]), 0]


@pytest.mark.parametrize("width", [2, 4])
def test_beams_that_all_live_on_hold_a_tail_each(width: int) -> None:
    held = [one.stats.blocks_used for one in steps(Asking(beam_width=width), 40, 20, each_its_own)]
    assert held == [3, *[2 + width] * 8, *[2 + 2 * width] * 10, 0]


def test_beams_with_drawn_candidates_share_more_than_beams_that_never_part() -> None:
    *_, last = steps(Asking(beam_width=4), 40, 200)
    *_, apart = steps(Asking(beam_width=4), 40, 200, each_its_own)
    assert 0.75 > last.engine.report().sharing_saved > apart.engine.report().sharing_saved + 0.1


def test_a_record_counts_the_tokens_of_all_answers_and_the_first_of_any() -> None:
    done = simulate(replica(), [request(0, 40, 6), request(1, 40, 6, 1.0)], asking=Asking(n=3))
    one = done.exchanges[0]
    assert [(chunk.at_us, chunk.tokens) for chunk in one.chunks] == [
        (10_000 * step, 3) for step in range(1, 7)
    ]
    assert (one.output_tokens, one.status, one.finish_reason, one.end_us) == (18, 200, "length", 60_000)
    assert len(done.exchanges) == 2


def test_beams_are_told_at_their_end() -> None:
    done = simulate(replica(), [request(0, 40, 6)], asking=Asking(beam_width=4, n=2))
    [one] = done.exchanges
    assert [(chunk.at_us, chunk.tokens) for chunk in one.chunks] == [(60_000, 12)]


def test_a_router_counts_a_request_with_several_answers_until_all_have_ended() -> None:
    """Two replicas, requests one after the other: each finds both empty, and the first replica takes them all."""
    cluster = Cluster([replica(), replica()], ROUTERS["least-loaded"]())
    done = simulate(cluster, [request(index, 40, 4, index * 1.0) for index in range(5)], asking=Asking(n=3))
    assert all(one.error is None and one.output_tokens == 12 for one in done.exchanges)
    assert [one.scheduler.counters.prompt_tokens for one in cluster.replicas] == [200, 0]


def test_children_answer_differently_so_that_none_finds_another_s_tokens() -> None:
    """With little memory sequences are preempted; those of one request share no block of their answers."""
    one = replica(blocks=40)
    simulate(one, [request(index, 30, 90) for index in range(4)], asking=Asking(n=4))
    assert one.scheduler.counters.preemptions > 0
    assert one.engine.report().duplicate_waste == 0
    one.engine.check()


@pytest.mark.parametrize("wrong", [{"n": 0}, {"n": 3, "beam_width": 2}, {"beam_width": 33}])
def test_what_the_api_refuses_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidParameter):
        Asking(**wrong)
