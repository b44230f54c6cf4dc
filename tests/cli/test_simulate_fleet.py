"""Several servers on the command line: what is wrong with them is one sentence, what is right makes failures."""

from __future__ import annotations

import pytest

from octavo.cli.simulate_fleet import Fleet
from octavo.errors import InvalidParameter
from octavo.simulation.failures import Failure


def test_failures_are_counted_from_one_and_may_last_for_ever() -> None:
    made = Fleet(3, "round-robin", ("replica 2 at 30s for 1min", "3 at 5ms")).failures(seed=0)
    assert made is not None
    assert made.after(1, 0) == Failure(1, 30_000_000, 90_000_000)
    assert made.after(2, 0) == Failure(2, 5_000, None)
    assert made.after(0, 0) is None and made.after(1, 30_000_001) is None
    assert Fleet(3, "round-robin").failures(seed=0) is None


@pytest.mark.parametrize(
    ("fail", "mtbf_s", "words"),
    [
        (("replica 4 at 3s",), None, "names replica 4, and --replicas is 3"),
        (("replica 0 at 3s",), None, "counted from 1"),
        (("the second",), None, "write 'replica 2 at 30s for 60s'"),
        (("1 at 3s", "1 at 5s"), None, "when it is dead already"),
        (("1 at 3s",), 60.0, "drop one of them"),
        ((), 0.0, "--mtbf is 0"),
    ],
)
def test_what_is_wrong_is_said(fail: tuple[str, ...], mtbf_s: float | None, words: str) -> None:
    with pytest.raises(InvalidParameter, match=words):
        Fleet(3, "round-robin", fail, mtbf_s).failures(seed=0)
