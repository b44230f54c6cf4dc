"""What a key may use in a minute: against a naive ledger, and by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.server.access import Key, Limits
from octavo.server.allowance import Allowance, Bucket


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_all_at_once_and_then_evenly() -> None:
    clock = Clock()
    bucket = Bucket(60, clock)
    assert (bucket.remaining, bucket.wait_s(60)) == (60, 0.0)
    bucket.use(60, held=0)
    assert (bucket.remaining, bucket.wait_s(1), bucket.wait_s(60)) == (0, 1.0, 60.0)
    clock.now += 10.5
    assert (bucket.remaining, bucket.wait_s(10), bucket.full_after_s) == (10, 0.0, 49.5)
    assert bucket.wait_s(10, leave=30) == 29.5
    clock.now += 1000
    assert (bucket.remaining, bucket.full_after_s) == (60, 0.0)


def test_what_is_held_does_not_flow_off() -> None:
    """Otherwise a request that lasts would free what it may still use, and give it back a second time at its end."""
    clock = Clock()
    bucket = Bucket(60, clock)
    bucket.hold(30)
    clock.now += 120
    assert bucket.remaining == 30
    bucket.use(10, held=10)
    assert bucket.remaining == 30
    bucket.give_back(20)
    assert bucket.remaining == 50


def test_a_debt_is_paid_with_time() -> None:
    clock = Clock()
    bucket = Bucket(60, clock)
    bucket.use(90, held=0)
    assert (bucket.remaining, bucket.wait_s(1)) == (0, 31.0)


def test_another_limit_keeps_what_was_used() -> None:
    clock = Clock()
    allowance = Allowance(Key(name="a", digest=b"", limits=Limits(tokens_per_minute=60)), clock)
    bucket = allowance.tokens
    assert bucket is not None
    bucket.use(50, held=0)
    allowance.change(Key(name="a", digest=b"", limits=Limits(tokens_per_minute=600, requests_per_minute=1)))
    assert bucket.remaining == 550 and [allowance.tokens, allowance.requests is None] == [bucket, False]
    allowance.change(Key(name="a", digest=b"", limits=Limits(tokens_per_minute=10)))
    assert bucket.remaining == 0 and bucket.wait_s(1) == pytest.approx(41 * 6)
    without = Key(name="a", digest=b"")
    allowance.change(without)
    assert [allowance.tokens] == [None]


@given(
    st.integers(10, 1000),
    st.lists(st.tuples(st.integers(1, 400), st.floats(0, 30), st.floats(0, 1)), min_size=1, max_size=40),
)
def test_no_more_is_used_than_the_limit_allows(
    per_minute: int, asked: list[tuple[int, float, float]]
) -> None:
    """In any stretch of time, whoever asks and however much of what was held is used: at most the limit, and what flows
    back meanwhile. Requests overlap: each ends when the one after the next has begun."""
    clock = Clock()
    bucket = Bucket(per_minute, clock)
    used: list[tuple[float, int]] = []
    running: list[tuple[int, int]] = []

    def end(held: int, amount: int) -> None:
        bucket.use(amount, held=amount)
        bucket.give_back(held - amount)
        used.append((clock.now, amount))

    for amount, pause_s, share in asked:
        clock.now += pause_s
        if amount <= per_minute and not bucket.wait_s(amount):
            bucket.hold(amount)
            running.append((amount, int(amount * share)))
        if len(running) > 2:
            end(*running.pop(0))
    for held, amount in running:
        end(held, amount)
    for first in range(len(used)):
        begun, total = used[first][0], 0
        for at, amount in used[first:]:
            total += amount
            assert total <= per_minute + (at - begun) * per_minute / 60 + 1e-6
    clock.now += 1e6
    assert bucket.remaining == per_minute
