"""The way to the engine and back: times by hand."""

from __future__ import annotations

from octavo.simulation.calibrated import HostWork, Watched
from octavo.simulation.pace import LinearPace
from octavo.simulation.replica import Replica
from octavo.simulation.run import simulate
from octavo.timing.clock import ManualClock
from octavo.workload.request import Part, Request
from tests.simulation.test_run import config, request

PACE = LinearPace(per_step_s=0.010, per_token_s=0.001)
HOST = HostWork(per_request_s=0.005, per_prompt_token_s=0.0001, per_chunk_s=0.002)


def test_requests_come_later_than_they_are_sent_and_chunks_later_than_their_steps() -> None:
    done = simulate(
        Replica(config(), PACE, ManualClock()), [request(0, 1.0, 100, 3), request(1, 1.01, 50, 2)], host=HOST
    )
    first, second = done.exchanges
    # 1.000 + 0.005 + 0.010 on the way, and a step of 0.110: at 1.125, with the client 2 ms later. The second one is
    # with the engine at 1.020, within that step; the next takes 0.061, until 1.186, with a chunk of each; the last
    # takes 0.012, until 1.198.
    assert [chunk.at_us for chunk in first.chunks] == [1_127_000, 1_188_000, 1_200_000]
    assert [chunk.at_us for chunk in second.chunks] == [1_190_000, 1_202_000]
    assert (first.sent_us, second.sent_us) == (1_000_000, 1_010_000)
    assert (first.end_us, second.end_us, done.end_us) == (1_200_000, 1_202_000, 1_202_000)


def test_a_short_prompt_overtakes_a_long_one_on_the_way() -> None:
    requests = [request(0, 1.0, 400, 1), request(1, 1.01, 10, 1)]
    done = simulate(Replica(config(), PACE, ManualClock()), requests, host=HOST)
    # The long one is 45 ms on its way, until 1.045; the short one 6 ms, until 1.016, and is done at 1.036.
    assert [one.chunks[0].at_us for one in done.exchanges] == [1_457_000, 1_038_000]


def test_a_follower_waits_until_the_answer_is_with_the_client() -> None:
    part = Part("own", 10)
    follower = Request(
        index=1, at_s=0.0, after=0, delay_s=0.1, session=0, turn=1, parts=(part,), output_tokens=1
    )
    done = simulate(Replica(config(), PACE, ManualClock()), [request(0, 0.0, 10, 1), follower], host=HOST)
    # 6 ms on the way, 20 ms of a step, 2 ms back; then 100 ms
    assert [one.intended_us for one in done.exchanges] == [0, 128_000]


def test_steps_outside_of_what_was_measured_are_counted_alike_one_by_one_and_together() -> None:
    """60 prompt tokens are more than 50; decodes read more than 200 stored tokens from a length of 201 on, 59 times."""
    seen = {
        "tokens": (1, 50),
        "samples": (0, 9),
        "kv_tokens": (0, 200),
        "pairs": (0, 10**6),
        "sequences": (1, 9),
    }
    found = []
    for fast in (True, False):
        watched = Watched(PACE, seen)
        simulate(Replica(config(), watched, ManualClock(), fast=fast), [request(0, 0.0, 60, 200)])
        found.append((watched.steps, watched.outside))
    assert found == [(200, {"tokens": (1, 60), "kv_tokens": (59, 259)})] * 2


def test_without_host_work_nothing_changes_and_equal_steps_are_taken_together_with_it() -> None:
    requests = [request(place, 0.05 * place, 60, 200) for place in range(5)]
    plain = simulate(Replica(config(), PACE, ManualClock()), requests)
    assert plain == simulate(Replica(config(), PACE, ManualClock()), requests, host=HostWork())
    fast, slow = (
        simulate(Replica(config(), PACE, ManualClock(), fast=fast), requests, host=HOST)
        for fast in (True, False)
    )
    assert fast == slow
