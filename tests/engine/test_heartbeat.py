"""What an engine process and its parent both see, and how long it has stood still."""

from __future__ import annotations

import os
from pathlib import Path

from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.heartbeat import Heartbeat, Look, shared_memory
from octavo.sampling.params import SamplingParams
from octavo.scheduling.inputs import Add


def pair() -> tuple[Heartbeat, Heartbeat]:
    """Two views of the same memory."""
    fd = shared_memory()
    views = Heartbeat(fd), Heartbeat(fd)
    os.close(fd)
    return views


def test_one_end_sees_what_the_other_wrote() -> None:
    engine, parent = pair()
    assert (parent.stepping, parent.names, parent.counter) == (False, None, (0, 0))
    engine.begin()
    assert (parent.stepping, parent.names) == (True, None), "nothing is decided yet"
    engine.planned(["chatcmpl-1-0", "é"], 0.25)
    assert (parent.names, parent.expected_s) == (["chatcmpl-1-0", "é"], 0.25)
    engine.progress[0] = 7 << 16 | 3
    assert parent.counter == (7 << 16 | 3, 1)
    engine.done()
    assert (parent.stepping, parent.names, parent.counter[1]) == (False, None, 2)


def test_more_names_than_fit_are_not_known() -> None:
    engine, parent = pair()
    engine.begin()
    engine.planned([f"{i:>100}" for i in range(700)], 0.0)
    assert parent.stepping
    assert parent.names is None


def test_the_engine_writes_whose_step_it_is_and_the_kernels_how_far_it_got(model_dir: Path) -> None:
    heartbeat, parent = pair()
    seen: list[tuple[list[str] | None, int]] = []

    class Spied(Heartbeat):
        def done(self) -> None:
            seen.append((parent.names, parent.counter[0]))
            heartbeat.done()

    spy = Spied()
    spy._map, spy._words = heartbeat._map, heartbeat._words
    engine = build_engine(EngineConfig(model_dir=str(model_dir), num_blocks=64, max_step_tokens=64), spy)
    layers = len(engine.backend.spec.program.layers)
    engine.add(Add("long", tuple(range(100)), SamplingParams(seed=1, max_tokens=2), 0.0))
    engine.add(Add("two", (5, 6, 7), SamplingParams(seed=1, n=2, max_tokens=3), 1.0))
    while not engine.idle:
        engine.step()
    assert [names for names, _ in seen][:2] == [["long"], ["long", "two"]]
    assert {counter & 0xFFFF for _, counter in seen} == {layers - 1}
    steps = [counter >> 16 for _, counter in seen]
    assert steps == sorted(set(steps))
    engine.close()


def test_looking_tells_how_long_nothing_moved() -> None:
    look = Look(0.25)
    assert look.at((1, 1), 10.0) == 0
    assert look.at((1, 1), 10.25) == 0.25
    assert look.at((1, 2), 10.5) == 0
    assert look.at((1, 2), 10.75) == 0.25
    look.forget()
    assert look.still_s == 0
    assert look.at((1, 2), 11.0) == 0


def test_the_sleep_of_the_one_who_looks_proves_nothing() -> None:
    look = Look(0.25)
    look.at((1, 1), 10.0)
    assert look.at((1, 1), 100.0) == 0.5
