"""Prompts here, answers there: transfers take bytes over bandwidth, links send one after another, nothing is lost."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from octavo.bench.record import Run
from octavo.simulation.asking import Asking
from octavo.simulation.cluster import Cluster
from octavo.simulation.disaggregated import Disaggregated, Link, receiving
from octavo.simulation.pace import LinearPace
from octavo.simulation.replica import Replica
from octavo.simulation.routers import RoundRobin
from octavo.simulation.run import simulate
from octavo.timing.clock import ManualClock
from octavo.workload.request import Part, Request
from tests.simulation.test_cluster import made
from tests.simulation.test_run import config, request

PACE = LinearPace(per_step_s=0.010, per_token_s=0.001)
LINK = Link(bytes_s=1e9, token_bytes=131_072, latency_s=0.002)


def split(
    prompts: int, answers: int, link: Link = LINK, *, fast: bool = True, **changes: object
) -> Disaggregated:
    own = config(**changes)

    def one(receives: bool) -> Replica:
        chosen = receiving(own) if receives else own
        return Replica(chosen, PACE, ManualClock(), fast=fast, receives=receives)

    return Disaggregated(
        Cluster([one(False) for _ in range(prompts)], RoundRobin()),
        Cluster([one(True) for _ in range(answers)], RoundRobin()),
        link,
    )


def run(served: Disaggregated, requests: list[Request]) -> Run:
    done = simulate(served, requests)
    for cluster in served.clusters:
        for replica in cluster.replicas:
            assert replica.idle
            replica.engine.check()
    return done


def chunks(done: Run, index: int) -> list[int]:
    return [chunk.at_us for chunk in done.exchanges[index].chunks]


@pytest.mark.parametrize("fast", [True, False])
def test_a_transfer_takes_bytes_over_bandwidth(fast: bool) -> None:
    """A prompt of 100 is one step of 110 ms. Its K and V, 100 × 128 KiB, take 13.1072 ms and 2 ms; then a step with one
    token is 11 ms, the prompt being no work there."""
    served = split(1, 1, fast=fast)
    done = run(served, [request(0, 0.0, 100, 3)])
    arrives = 110_000 + 13_107 + 2_000
    assert chunks(done, 0) == [110_000, arrives + 11_000, arrives + 22_000]
    assert served.sent_bytes == 100 * 131_072


def test_a_link_sends_one_prompt_after_another() -> None:
    """Both prompts are one step of 10 + 200 ms. The second is sent when the first is: each takes 100 × 128 KiB over
    13.1072 MB/s, a second. The first answer's second token is there at 0.21 + 1 + 0.002 + 0.011 s."""
    link = Link(bytes_s=13_107_200, token_bytes=131_072, latency_s=0.002)
    done = run(split(1, 2, link), [request(0, 0.0, 100, 2), request(1, 0.0, 100, 2)])
    assert chunks(done, 0) == [210_000, 1_223_000]
    assert chunks(done, 1) == [210_000, 2_223_000]


def test_several_links_send_at_once() -> None:
    link = Link(bytes_s=13_107_200, token_bytes=131_072, latency_s=0.002)
    done = run(split(2, 2, link), [request(0, 0.0, 100, 2), request(1, 0.0, 100, 2)])
    assert chunks(done, 0) == chunks(done, 1) == [110_000, 1_123_000]


def test_a_prompt_stalls_no_stream() -> None:
    """Together a stream waits for the chunks of a long prompt; apart its steps are 11 ms, or 12 with both."""
    requests = [request(0, 0.0, 10, 100), request(1, 0.2, 400, 5)]
    together = simulate(Replica(config(), PACE, ManualClock()), requests)
    apart = run(split(1, 1), requests)

    def longest(done: Run) -> int:
        times = chunks(done, 0)[1:]
        return max(after - before for before, after in pairwise(times))

    assert longest(together) == 411_000
    assert longest(apart) == 12_000


def test_a_request_of_one_token_stays_where_it_began() -> None:
    served = split(1, 1)
    done = run(served, [request(0, 0.0, 100, 1)])
    assert chunks(done, 0) == [110_000]
    assert served.sent_bytes == 0 and done.server[-1].values["generated_tokens"] == 1


def test_a_beginning_that_is_cached_is_sent_all_the_same_and_computed_once() -> None:
    shared = (Part("system", 96), Part("own", 4))
    served = split(1, 1)
    done = run(served, [request(0, 0.0, 100, 2, parts=shared), request(1, 1.0, 100, 2, parts=shared)])
    assert chunks(done, 1)[0] < 1_000_000 + 110_000
    assert served.sent_bytes == 200 * 131_072
    assert done.server[-1].values["prefix_hit_tokens"] == 96
    assert done.server[-1].values["prompt_tokens"] == 200


def test_who_lost_the_memory_of_its_answer_computes_it_again() -> None:
    """Two answers of 48 tokens over memory for 8 blocks: one gives up its blocks, and what it recomputes is work."""
    requests = [request(n, 0.0, 16, 60) for n in range(2)]
    roomy = run(split(1, 1), requests)
    tight = run(split(1, 1, num_blocks=8, max_model_len=96, prefix_cache=False), requests)
    assert tight.server[-1].values["preemptions"] > 0
    assert tight.end_us > roomy.end_us
    assert [one.output_tokens for one in tight.exchanges] == [60, 60]


@pytest.mark.parametrize("workload", ["chat", pytest.param("agent", marks=pytest.mark.slow)])
def test_nothing_is_lost_and_steps_taken_together_change_nothing(workload: str) -> None:
    requests = made(workload, 25, 4.0)
    records = []
    for fast in (True, False, True):
        done = run(split(2, 3, fast=fast), requests)
        for one in done.exchanges:
            assert one.error is None and one.output_tokens == one.wanted_output == len(one.chunks)
        assert done.server[-1].values["generated_tokens"] == sum(
            one.output_tokens or 0 for one in done.exchanges
        )
        assert done.server[-1].values["waiting"] == 0
        records.append(msgspec.json.encode(done))
    assert records[0] == records[1] == records[2]


def test_several_answers_cannot_be_sent_on() -> None:
    with pytest.raises(ValueError, match="several answers"):
        simulate(split(1, 1), [request(0, 0.0, 10, 5)], asking=Asking(n=2))
