"""Steps that were watched: their terms come out again, and all of them together take as long as they did."""

from __future__ import annotations

import random

import pytest

from octavo.errors import BenchError
from octavo.planning.refit import pace_of
from octavo.protocol.watch import Worked
from octavo.simulation.told import lengths_of, load_of, ranges_of
from octavo.timing.step_time import StepLoad
from tests.planning.watching import PACE


def steps(count: int, noise: float) -> list[Worked]:
    """One after another, with 2 ms between them; some have a prompt. `noise`: some take so many times as long."""
    chance, at_s, found = random.Random(1), 0.0, []
    for _ in range(count):
        streams = chance.randint(1, 12)
        load = StepLoad(streams, streams, streams * chance.randint(50, 400), 0, streams)
        if chance.random() < 0.3:
            load = StepLoad(
                *(
                    a + b
                    for a, b in zip(load, StepLoad().with_chunk(0, chance.randint(20, 200), 1), strict=True)
                )
            )
        seconds = PACE.seconds(load) * (noise if chance.random() < 0.1 else 1.0)
        found.append(Worked(at_s, at_s + seconds, False, *load))
        at_s += seconds + 0.002
    return found


def test_the_terms_come_out_again() -> None:
    seen = steps(800, 1.0)
    pace, fitted = pace_of(seen)
    assert fitted.steps == 799 + 1 and fitted.error_p50 < 0.05
    for load in (StepLoad(4, 4, 800, 0, 4), StepLoad(104, 5, 800, 5050, 5)):
        assert pace.seconds(load) == pytest.approx(PACE.seconds(load) + 0.002, rel=0.08)


def test_what_is_slow_by_chance_counts() -> None:
    seen = steps(800, 5.0)
    pace, _ = pace_of(seen)
    told = sum(pace.seconds(load_of(one)) for one in seen)
    assert told == pytest.approx(sum(lengths_of(seen)), rel=0.01)


def test_a_pause_without_work_is_no_step() -> None:
    one = Worked(0.0, 0.1, False, 1, 1, 1, 0, 1)
    idle = Worked(0.2, 0.3, True, 1, 1, 1, 0, 1)
    last = Worked(9.0, 9.1, False, 2, 2, 9, 0, 2)
    assert lengths_of([one, idle, last]) == pytest.approx([0.2, 0.1, 0.1])
    assert ranges_of([one, last])["kv_tokens"] == (1, 9)
    with pytest.raises(BenchError, match="took 3 steps while it was watched, and 60 are needed"):
        pace_of([one, idle, last])
