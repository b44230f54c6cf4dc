"""Steps by target: the largest chunk that keeps the streams' gaps, by a model that the steps themselves have fitted."""

from __future__ import annotations

import random
from itertools import pairwise

import msgspec
import pytest

from octavo.scheduling.inputs import Service
from octavo.scheduling.profiles import PROFILES, Targets, targets_of
from octavo.timing.step_time import StepLoad, StepTime, TimedLoad
from tests.fakes import make_engine, request
from tests.scheduling.timed import MEASURED, Timed, seconds_of


@pytest.mark.parametrize("measured", [MEASURED, ()])
def test_a_long_prompt_does_not_stall_streams(measured: tuple[TimedLoad, ...]) -> None:
    """Case 6; with steps measured at the start, or learned on the way."""
    alone = Timed()
    alone.add("long", 3000, 1)
    alone.run()
    timed = Timed(targets=Targets(tbt_s=0.1), measured=measured)
    streams = [f"s{number}" for number in range(8)]
    for name in streams:
        timed.add(name, 50, 300)
    timed.add("long", 3000, 1, at=1.0)
    timed.run()
    assert timed.worst_gap(streams) <= 0.15
    assert timed.ttft("long") <= 2 * alone.ttft("long")


def test_a_target_of_streams_does_not_hold_back_a_prompt_of_higher_priority() -> None:
    alone = Timed(measured=MEASURED)
    alone.add("high", 400, 1)
    alone.run()
    timed = Timed(targets=Targets(tbt_s=0.05), measured=MEASURED)
    for number in range(8):
        timed.add(f"s{number}", 50, 300)
    timed.add("high", 400, 1, at=1.0, priority=-1)
    timed.add("same", 400, 1, at=2.5)
    timed.run()
    # A step of the streams runs when it comes, and their tokens are beside it.
    assert timed.ttft("high") <= alone.ttft("high") + 0.05 + 8 * 0.001
    # One of theirs gets what their targets leave of each step.
    assert timed.ttft("same") >= 0.05 * 400 / (50 - 5 - 8)


def test_without_a_target_a_step_is_as_long_as_its_budget() -> None:
    timed = Timed()
    timed.add("s", 50, 300)
    timed.add("long", 3000, 1, at=0.5)
    timed.run()
    assert timed.worst_gap(["s"]) == pytest.approx(seconds_of(512))


def test_batch_fills_only_what_chat_leaves() -> None:
    def served(chat: bool) -> tuple[float, float]:
        """The worst gap of the chats, and the batch's tokens a second while they ran."""
        timed = Timed(measured=MEASURED)
        if chat:
            for number in range(4):
                timed.add(f"chat{number}", 100, 400, profile="chat")
        for number in range(60):
            timed.add(f"batch{number}", 300, 60, profile="batch")
        chats = [f"chat{number}" for number in range(4)] if chat else []
        timed.run(lambda: timed.clock.now_s() > 20)
        until = timed.clock.now_s()
        batch = sum(
            timed.tokens_by(f"batch{number}", until) + (300 if f"batch{number}" in timed.times else 0)
            for number in range(60)
        )
        return (timed.worst_gap(chats) if chats else 0.0), batch / until

    gap, beside = served(chat=True)
    _, alone = served(chat=False)
    assert gap <= 0.1 * 1.05
    # A step of 100 ms has time for 95 tokens, 4 of them the chats'; alone, 512 tokens take 517 ms.
    rest = (0.1 - seconds_of(4)) / 0.1 * (1 / 0.001)
    assert beside >= 0.8 * min(alone, rest)


def test_speech_hurries_until_its_first_sentence_has_ended() -> None:
    timed = Timed(measured=MEASURED)
    dot = 12

    def script(history: tuple[int, ...], rule: object) -> int:
        return ord(".") if len(history) == 50 + dot else 65

    timed.engine.backend.script = script  # type: ignore[attr-defined]
    timed.add("voice", 50, 40, profile="voice")
    timed.add("long", 4000, 1, at=0.06)
    timed.run(lambda: len(timed.times.get("voice", ())) == 30)
    times = timed.times["voice"]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    hurried = max(gaps[1:dot])
    assert hurried <= seconds_of(1 + 16) + 1e-9  # the least chunk that a prompt gets
    assert max(gaps[dot + 1 :]) > 2 * hurried


def test_profiles_are_what_the_docs_say() -> None:
    assert PROFILES["chat"].ttft_s == 0.5 and PROFILES["rag"].e2e_s == 5.0 and PROFILES["batch"].slack_only
    assert PROFILES["autocomplete"].between_s(10, in_first_sentence=False) == pytest.approx(0.01)
    assert PROFILES["voice"].between_s(None, in_first_sentence=True) == 0.015


def test_the_model_finds_the_factors_that_made_the_steps() -> None:
    chance = random.Random(1)
    true = (0.004, 0.0011, 0.0003, 2e-6, 1e-6)
    model = StepTime()
    loads = []
    for _ in range(600):
        decodes, chunk, start = (
            chance.randint(0, 32),
            chance.choice([0, 0, 16, 100, 512]),
            chance.randint(0, 2000),
        )
        load = StepLoad()
        for _ in range(decodes):
            load = load.with_chunk(chance.randint(10, 2000), 1, 1)
        if chunk:
            load = load.with_chunk(start, chunk, chance.randint(0, 1))
        if load.tokens:
            loads.append(load)
            seconds = sum(w * x for w, x in zip(true, (1, *load[:4]), strict=True))
            model.observe(load, seconds * chance.uniform(0.97, 1.03))
    for load in loads[-50:]:
        seconds = sum(w * x for w, x in zip(true, (1, *load[:4]), strict=True))
        assert model.predict(load) == pytest.approx(seconds, rel=0.1)


def test_the_model_follows_a_machine_that_becomes_slower() -> None:
    model = StepTime(MEASURED)
    load = StepLoad(8, 8, 800, 0)
    before = model.predict(load)
    for _ in range(60):
        model.observe(load, 3 * before)
    assert model.predict(load) == pytest.approx(3 * before, rel=0.15)


def test_the_largest_chunk_is_the_last_that_fits() -> None:
    model = StepTime(MEASURED)
    load = StepLoad().with_chunk(100, 1, 1)
    count = model.most_tokens(load, 0, 512, 0.1)
    assert (
        model.predict(load.with_chunk(0, count, 1)) <= 0.1 < model.predict(load.with_chunk(0, count + 1, 1))
    )
    assert model.most_tokens(load, 0, 512, 1e-6) == 0 and model.most_tokens(load, 0, 512, 100.0) == 512


def test_a_requests_own_targets_win_over_its_profiles() -> None:
    usual = Targets(ttft_s=9.0, tbt_s=8.0)
    assert targets_of(Service(), usual) is usual
    assert targets_of(Service(profile="chat"), usual) == PROFILES["chat"]
    assert targets_of(Service(tbt_s=0.02), usual) == Targets(ttft_s=9.0, tbt_s=0.02)
    own = targets_of(Service(profile="voice", ttft_s=0.3), usual)
    assert own == msgspec.structs.replace(PROFILES["voice"], ttft_s=0.3)


def test_a_requests_own_target_binds_the_steps_that_it_decodes_in() -> None:
    service = Service(tbt_s=0.02, ttft_s=0.5)
    add = msgspec.structs.replace(request("r", "hello", max_tokens=30), service=service)
    engine = make_engine()
    engine.add(add)
    engine.step()
    [sequence] = engine._scheduler.running
    assert sequence.between_s == 0.02 and sequence.request.deadline_s == 0.5
