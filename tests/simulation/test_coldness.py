"""Caches that a prompt's step leaves cold: by hand, found again by a fit, and the same step by step or together."""

from __future__ import annotations

import math
import random

import msgspec
import pytest

from octavo.protocol.watch import Worked
from octavo.simulation.calibrate import Observed, fit
from octavo.simulation.calibrated import CalibratedPace, Watched
from octavo.simulation.coldness import RATES, Coldness, colds_of
from octavo.simulation.pace import LinearPace, ScaledPace, coldness_of
from octavo.simulation.replica import Replica
from octavo.simulation.run import simulate
from octavo.simulation.told import groups_of
from octavo.timing.clock import ManualClock
from octavo.timing.step_time import StepLoad
from tests.simulation.test_cluster import made
from tests.simulation.test_run import config, request

PACE = CalibratedPace(
    per_step_s=0.004,
    tokens=(0, 8, 64, 512),
    token_s=(0.0, 0.002, 0.02, 0.2),
    per_kv_token_s=3e-7,
    per_cold_s=0.003,
    cold_stays=0.75,
)
DECODE = StepLoad(1, 1, 100, 0, 1)


def test_a_prompt_leaves_it_cold_and_each_decode_takes_its_share_of_that() -> None:
    one = Coldness(0.004, 0.5)
    assert one.seconds == 0.0
    one.after(StepLoad(64, 1, 0, 2080, 1))  # 63 tokens besides the one that every sequence has
    assert one.now == 1 - math.exp(-63 / 32)
    first = one.seconds
    assert one.decodes_s(3) == [first, first / 2, first / 4] and one.seconds == first  # only looked
    one.after(DECODE)
    assert one.seconds == first / 2
    one.after(StepLoad(5, 2, 100, 10, 2))  # a few tokens leave less than is there
    assert one.now == max((1 - math.exp(-63 / 32)) / 4, 1 - math.exp(-3 / 32))
    before = one.now
    one.after_decodes(7)
    assert one.now == before * 0.5**7


def test_an_answer_s_steps_are_longer_behind_its_prompt_by_hand() -> None:
    run = simulate(Replica(config(), PACE, ManualClock()), [request(0, 0.0, 100, 5)])
    [one] = run.exchanges
    cold = 0.003 * (1 - math.exp(-99 / 32))
    now_s, told = PACE.seconds(StepLoad(100, 1, 0, 5050, 1)), []
    for step in range(5):
        told.append(round(now_s * 1e6))
        now_s += PACE.seconds(StepLoad(1, 1, 101 + step, 0, 1)) + cold * 0.75**step
    assert [chunk.at_us for chunk in one.chunks] == told


def test_steps_taken_together_are_those_taken_one_by_one_to_the_last_bit() -> None:
    requests = made("chat", 40, 6.0)
    records = [
        msgspec.json.encode(simulate(Replica(config(), PACE, ManualClock(), fast=fast), requests))
        for fast in (True, False)
    ]
    assert records[0] == records[1]
    warm = msgspec.structs.replace(PACE, per_cold_s=0.0)
    assert records[0] != msgspec.json.encode(simulate(Replica(config(), warm, ManualClock()), requests))


def test_a_pace_around_another_is_as_cold_as_that_and_a_line_is_never() -> None:
    found = [coldness_of(ScaledPace(pace=PACE, times=2.0)), coldness_of(Watched(PACE, {}))]
    assert [(one.full_s, one.stays) for one in found if one is not None] == [(0.006, 0.75), (0.003, 0.75)]
    line = LinearPace(per_step_s=0.01)
    assert coldness_of(line) is coldness_of(ScaledPace(pace=line, times=2.0)) is None
    assert coldness_of(Watched(line, {})) is None


def steps(count: int, pace: CalibratedPace, seed: int = 0) -> tuple[list[StepLoad], list[float]]:
    """One after another, as traffic has them: prompts of all lengths among decodes."""
    draw, loads, seconds = random.Random(seed), list[StepLoad](), list[float]()
    state = Coldness(pace.per_cold_s, pace.cold_stays)
    for _ in range(count):
        load = StepLoad()
        for _ in range(draw.choice((0, 1, 1, 2, 4, 7))):
            load = load.with_chunk(draw.randrange(50, 400), 1, 1)
        if draw.random() < 0.15 or not load.tokens:
            load = load.with_chunk(draw.randrange(300), round(500 ** draw.random()), 1)
        loads.append(load)
        seconds.append(pace.seconds(load) + state.seconds)
        state.after(load)
    return loads, seconds


@pytest.mark.parametrize("stays", [RATES[1], RATES[4]])
def test_a_fit_finds_how_cold_it_gets_and_how_soon_that_is_over(stays: float) -> None:
    truth = msgspec.structs.replace(PACE, tokens=(0, 512), token_s=(0.0, 0.2), cold_stays=stays)
    loads, seconds = steps(400, truth)
    seen = [Observed((a,), b, cold=c) for a, b, c in zip(loads, seconds, colds_of(loads), strict=True)]
    pace, _, fitted = fit(seen)
    assert pace.cold_stays == stays and pace.per_cold_s == pytest.approx(0.003, rel=1e-3)
    assert fitted.low["per_cold_s"] <= 0.003 * 1.001 and fitted.high["per_cold_s"] >= 0.003 * 0.999
    warm, _, _ = fit([without_caches(one) for one in seen])
    assert (warm.per_cold_s, warm.cold_stays) == (0.0, 0.0)


def without_caches(one: Observed) -> Observed:
    """Without what is known of the caches."""
    return Observed(one.loads, one.seconds)


def test_what_a_server_tells_of_its_steps_has_their_order_and_so_their_coldness() -> None:
    loads, seconds = steps(600, PACE, seed=3)
    told, now_s = [], 0.0
    for load, lasting_s in zip(loads, seconds, strict=True):
        told.append(worked(load, now_s, now_s + lasting_s))
        now_s += lasting_s
    groups = groups_of(told)
    assert sum(one.steps for one in groups) == 600
    at = RATES.index(0.75)
    expected = sum(one[at] for one in colds_of(loads))
    assert sum(one.cold[at] for one in groups) == pytest.approx(expected)
    pace, _, _ = fit(groups)
    assert pace.per_cold_s == pytest.approx(0.003, rel=0.15)


def worked(load: StepLoad, began_s: float, ended_s: float) -> Worked:
    return Worked(
        began_s=began_s,
        ended_s=ended_s,
        idle=False,
        tokens=load.tokens,
        samples=load.samples,
        kv_tokens=load.kv_tokens,
        pairs=load.pairs,
        sequences=load.sequences,
    )
