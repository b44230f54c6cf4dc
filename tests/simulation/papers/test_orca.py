"""Orca's experiment: when a request of a static batch returns, and what iteration-level scheduling gains."""

from __future__ import annotations

import pytest

from octavo.bench.record import Chunk, Exchange, Kind
from octavo.simulation.papers.orca import alone_s, normalized_s, system, with_their_batch
from octavo.timing.step_time import StepLoad


def exchange(index: int, came: int, first: int, end: int, tokens: int) -> Exchange:
    chunks = [Chunk(first, 1, 4, Kind.ANSWER), Chunk(end, tokens - 1, 4, Kind.ANSWER)]
    return Exchange(
        index=index, session=index, turn=0, intended_us=came, sent_us=came, end_us=end, wanted_output=tokens,
        chunks=chunks, output_tokens=tokens, status=200,
    )  # fmt: skip


def test_requests_of_a_static_batch_return_when_its_longest_ends() -> None:
    """Two batches of two: the first ends at 9 s, the second begins after it."""
    second = 1_000_000
    done = [
        exchange(0, 0, 1 * second, 3 * second, 2),
        exchange(1, 0, 1 * second, 9 * second, 8),
        exchange(2, 2 * second, 10 * second, 16 * second, 7),
        exchange(3, 8 * second, 10 * second, 11 * second, 2),
    ]
    assert with_their_batch(done) == [9 * second, 9 * second, 16 * second, 16 * second]
    assert with_their_batch(done[::-1]) == [16 * second, 16 * second, 9 * second, 9 * second]
    # 9/2, 9/8, 14/7, 8/2 seconds a token: the median is between 2 and 4. On their own: 3/2, 9/8, 2, 3/2.
    assert normalized_s(done, batched=True) == pytest.approx(3.0)
    assert normalized_s(done, batched=False) == pytest.approx(1.5)


def test_alone_a_token_takes_about_a_step() -> None:
    """The prompt's step is spread over the tokens: a little more than a step of one token, and less than two."""
    pace = system("continuous", 1).pace()
    step_s = pace.seconds(StepLoad(1, 1, 300, 0))
    assert step_s < alone_s("typical") < 2 * step_s
    assert alone_s("typical") < alone_s("low")
