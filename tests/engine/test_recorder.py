"""What steps did, worked by hand; and that writing it down changes nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from octavo.backends.base import Limits
from octavo.bench.record import Run
from octavo.engine.recorder import Recorder
from octavo.scheduling.settings import SchedulerConfig
from octavo.simulation.pace import LinearPace
from octavo.simulation.replica import Replica
from octavo.simulation.run import simulate
from octavo.telemetry.timeline import Admission, Step, Timeline
from octavo.timing.clock import ManualClock
from octavo.workload.generate import requests_of
from octavo.workload.request import Part, Request
from octavo.workload.spec import load_workload

PACE = LinearPace(per_step_s=0.010, per_token_s=0.001)


def request(index: int, at_s: float, tokens: int, output: int) -> Request:
    parts = (Part(f"own/{index}", tokens),)
    return Request(index=index, at_s=at_s, session=index, parts=parts, output_tokens=output)


def watched(
    requests: Any, *, window_us: tuple[int, int | None] | None = (0, None), **changes: Any
) -> tuple[list[Step], Run]:
    sizes = {
        "num_blocks": 64, "block_size": 16, "max_slots": 8, "max_step_tokens": 512, "max_model_len": 1024,
    }  # fmt: skip
    sizes.update({name: changes.pop(name) for name in list(changes) if name in sizes})
    timeline = Timeline()
    recorder = None if window_us is None else Recorder(timeline, from_us=window_us[0], until_us=window_us[1])
    replica = Replica(
        SchedulerConfig(Limits(**sizes), 1, (), **changes), PACE, ManualClock(), recorder=recorder
    )
    done = simulate(replica, requests)
    replica.engine.check()
    return list(timeline), done


THREE = [request(0, 0.0, 20, 5), request(1, 0.0, 10, 4), request(2, 0.045, 100, 2)]


def who(steps: list[Step]) -> list[tuple[int, int, list[tuple[str, str, int, int]]]]:
    return [
        (
            one.begin_us,
            one.end_us,
            [(share.request, share.work[0], share.start, share.tokens) for share in one.shares],
        )
        for one in steps
    ]


def test_stall_free_lets_everyone_go_on_while_a_prompt_is_computed_in_chunks() -> None:
    steps, _ = watched(THREE, policy="stall-free", budget_tokens=52)
    assert who(steps) == [
        (0, 40_000, [("0", "p", 0, 20), ("1", "p", 0, 10)]),
        (40_000, 52_000, [("0", "d", 20, 1), ("1", "d", 10, 1)]),
        (52_000, 114_000, [("0", "d", 21, 1), ("1", "d", 11, 1), ("2", "p", 0, 50)]),
        (114_000, 176_000, [("0", "d", 22, 1), ("1", "d", 12, 1), ("2", "p", 50, 50)]),
        (176_000, 188_000, [("0", "d", 23, 1), ("2", "d", 100, 1)]),
    ]
    assert [one.ended for one in steps] == [(), (), (), (("1", 0),), (("0", 0), ("2", 0))]
    assert [one.running for one in steps] == [2, 2, 3, 3, 2]


def test_prefill_first_lets_everyone_wait_for_the_whole_prompt() -> None:
    steps, _ = watched(THREE, policy="prefill-first")
    assert who(steps) == [
        (0, 40_000, [("0", "p", 0, 20), ("1", "p", 0, 10)]),
        (40_000, 52_000, [("0", "d", 20, 1), ("1", "d", 10, 1)]),
        (52_000, 162_000, [("2", "p", 0, 100)]),
        (162_000, 175_000, [("0", "d", 21, 1), ("1", "d", 11, 1), ("2", "d", 100, 1)]),
        (175_000, 187_000, [("0", "d", 22, 1), ("1", "d", 12, 1)]),
        (187_000, 198_000, [("0", "d", 23, 1)]),
    ]
    assert [one.admitted for one in steps] == [
        (Admission("0", 0, 0, 0), Admission("1", 0, 0, 0)), (), (Admission("2", 0, 45_000, 0),), (), (), (),
    ]  # fmt: skip
    assert [one.blocks_used for one in steps] == [3, 3, 10, 10, 3, 2]
    # 16 tokens a block: of 3 blocks 30 tokens are used, then 32; behind 32 + 100 there are 10 blocks
    assert [one.internal_tokens for one in steps] == [18, 16, 28, 25, 12, 8]


def test_who_loses_his_place_is_named_and_begins_again() -> None:
    steps, _ = watched(
        [request(0, 0.0, 60, 40), request(1, 0.0, 60, 40)],
        num_blocks=10,
        max_step_tokens=160,
        max_model_len=160,
    )
    [lost] = [one for one in steps if one.preempted]
    assert lost.preempted == (("1", 0),) and {share.request for share in lost.shares} == {"0"}
    [_, again] = [one for step in steps for one in step.admitted if one.request == "1"]
    assert again.arrived_us == 0
    assert sum(one.evicted_blocks for one in steps) > 0


@pytest.mark.parametrize("name", ["chat", "agent"])
@pytest.mark.parametrize("window_us", [(0, None), (5_000_000, 9_000_000)])
def test_writing_down_changes_nothing(name: str, window_us: tuple[int, int | None]) -> None:
    workload = msgspec.structs.replace(load_workload(name), seed=3, requests=12).at_rate(2.0)
    knobs: dict[str, Any] = {"num_blocks": 700, "max_model_len": 10_000, "max_slots": 5}
    steps, recorded = watched(requests_of(workload), window_us=window_us, **knobs)
    none, plain = watched(requests_of(workload), window_us=None, **knobs)
    assert msgspec.json.encode(recorded) == msgspec.json.encode(plain)
    assert steps and not none
    whole, _ = watched(requests_of(workload), **knobs)
    until_us = window_us[1] or plain.end_us
    cut = [one for one in whole if window_us[0] <= one.begin_us < until_us]
    assert who(steps) == who(cut) and [one.blocks_used for one in steps] == [one.blocks_used for one in cut]
    assert [one.internal_tokens for one in steps] == [one.internal_tokens for one in cut]


def test_of_a_whole_run_the_steps_follow_each_other_and_hold_every_token() -> None:
    steps, done = watched([request(0, 0.0, 40, 90), request(1, 0.3, 40, 60)])
    assert [one.number for one in steps] == list(range(len(steps)))
    assert sum(one.tokens for one in steps) == 80 + 90 + 60 - 2
    assert steps[-1].end_us == done.end_us
