"""Speculation with guesses as good as somebody says: closed forms, the real control, and answers that stay the same."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from octavo.backends.base import Limits, Plan, PlanRow, SampleRow
from octavo.bench.record import Run
from octavo.errors import InvalidParameter, SettingsError
from octavo.scheduling.settings import SchedulerConfig
from octavo.simulation.asking import Asking
from octavo.simulation.backend import load_of
from octavo.simulation.guessing import Guessing
from octavo.simulation.pace import LinearPace
from octavo.simulation.replica import Replica
from octavo.simulation.run import simulate
from octavo.speculation.profile import Acceptance, Profile
from octavo.timing.clock import ManualClock
from octavo.timing.step_time import StepLoad
from octavo.workload.request import Part, Request

FLAT = LinearPace(per_step_s=0.010)


def replica(guessing: Guessing | None, pace: LinearPace = FLAT, **more: Any) -> Replica:
    limits = Limits(num_blocks=8000, block_size=16, max_slots=256, max_step_tokens=2048, max_model_len=16384)
    return Replica(SchedulerConfig(limits, 1, ()), pace, ManualClock(), guessing=guessing, **more)


def requests(count: int, output: int, prompt: int = 32) -> list[Request]:
    return [
        Request(index=n, at_s=0.0, session=n, parts=(Part(f"own/{n}", prompt),), output_tokens=output)
        for n in range(count)
    ]


def bursts(run: Run, index: int = 0) -> list[int]:
    """Tokens of each step that decodes, but the last one, which the answer's end may cut."""
    return [chunk.tokens for chunk in run.exchanges[index].chunks[1:-1]]


@pytest.mark.parametrize("acceptance", [0.3, 0.7, 0.9])
@pytest.mark.parametrize("tokens", [1, 4, 8])
def test_a_step_gives_as_many_tokens_as_the_formula_says(acceptance: float, tokens: int) -> None:
    """(1 - a^(k+1)) / (1 - a) (Leviathan et al. 2023, equation 1), within four standard errors."""
    done = simulate(replica(Guessing(chances=(acceptance,), tokens=tokens)), requests(1, 5_000))
    seen = bursts(done)
    expected = (1 - acceptance ** (tokens + 1)) / (1 - acceptance)
    chances = [(1 - acceptance) * acceptance**right for right in range(tokens)] + [acceptance**tokens]
    variance = sum(chance * (right + 1 - expected) ** 2 for right, chance in enumerate(chances))
    assert sum(seen) / len(seen) == pytest.approx(expected, abs=4 * math.sqrt(variance / len(seen)))
    assert done.exchanges[0].output_tokens == 5_000
    read = done.server[-1].values
    assert read["accepted_tokens"] < read["drafted_tokens"] <= tokens * len(done.exchanges[0].chunks)


@pytest.mark.parametrize("model", [None, LinearPace(per_step_s=0.001)])
def test_guesses_that_are_always_or_never_right(model: LinearPace | None) -> None:
    always = simulate(replica(Guessing(chances=(1.0,), tokens=4), draft_pace=model), requests(1, 101))
    assert set(bursts(always)) == {5} and len(always.exchanges[0].chunks) == 21
    never = replica(Guessing(chances=(0.0,), tokens=4), draft_pace=model)
    assert set(bursts(simulate(never, requests(1, 100)))) == {1}
    assert (never.stats.accepted_tokens, never.stats.draft_tokens) == (0, 98 * 4 - 3 - 2 - 1)
    never.engine.check()


def test_a_draft_model_s_steps_take_their_time_and_its_guesses_are_as_often_right() -> None:
    """Four guesses of a model are four of its steps: 4 ms beside the 10 ms of the step that verifies them."""
    one = replica(Guessing(chances=(0.7,), tokens=4), draft_pace=LinearPace(per_step_s=0.001))
    done = simulate(one, requests(1, 3_000))
    seen = bursts(done)
    assert sum(seen) / len(seen) == pytest.approx((1 - 0.7**5) / 0.3, abs=0.2)
    times = [chunk.at_us for chunk in done.exchanges[0].chunks]
    gaps = {after - before for before, after in pairwise(times[:-1])}
    assert {round(gap, -1) for gap in gaps} == {14_000}
    one.engine.check()


def test_which_guesses_are_right_does_not_depend_on_who_runs_beside_it() -> None:
    guessing = Guessing(chances=(0.6,), tokens=3)
    alone = simulate(replica(guessing), requests(1, 300))
    beside = simulate(replica(guessing), requests(20, 300))
    assert bursts(alone) == bursts(beside)
    assert bursts(beside, 1) != bursts(beside, 0)


def test_the_control_stops_guessing_where_a_batch_is_full() -> None:
    """Up to 16 tokens a step cost what one does, and each more a tenth of a step: alone, all guesses pay; in a batch of
    64 a guess that is right three times in four costs more than it brings."""
    pace = LinearPace(per_step_s=0.010, per_token_s=0.001, knee=16)
    tried = {}
    for streams in (1, 64):
        one = replica(Guessing(chances=(0.75,)), pace)
        simulate(one, requests(streams, 400))
        tried[streams] = one.stats.draft_tokens / one.stats.generation_tokens
    assert tried[1] > 0.8 and tried[64] < 0.1


def test_what_the_control_chooses_is_faster_than_none_and_than_too_many() -> None:
    pace = LinearPace(per_step_s=0.010, per_token_s=0.002, knee=4)
    ends = {
        name: simulate(replica(guessing, pace), requests(2, 600)).end_us
        for name, guessing in {
            "none": None,
            "chosen": Guessing(chances=(0.7,)),
            "many": Guessing(chances=(0.7,), tokens=16),
        }.items()
    }
    assert ends["chosen"] < 0.8 * ends["none"] and ends["chosen"] < 0.6 * ends["many"]


def test_several_answers_are_guessed_each_by_itself() -> None:
    one = replica(Guessing(chances=(0.8,), tokens=4))
    done = simulate(one, requests(3, 50), asking=Asking(n=3))
    assert [exchange.output_tokens for exchange in done.exchanges] == [150] * 3
    assert 0.4 < one.stats.accepted_tokens / one.stats.draft_tokens < 0.9
    one.engine.check()


def test_a_step_that_verifies_reads_what_is_stored_once() -> None:
    """One row of 1 + 2 tokens behind 100: 101 are read for the first; the others see 102 and 103. A row whose samples
    are of forks is a prompt."""
    rows = (PlanRow(0, 100, 3), PlanRow(1, 0, 3))
    samples = (*(SampleRow(0, place, 0) for place in range(3)), SampleRow(1, 2, 1), SampleRow(1, 2, 2))
    assert load_of(Plan(0, rows=rows, samples=samples)) == StepLoad(6, 5, 101, 102 + 103 + 1 + 2 + 3, 2)


def profile(path: Path, **changes: Any) -> Path:
    first = Acceptance(
        work="code", streams=1, tokens=100, drafts=20, draft_tokens=80, reached_at=(20, 10), accepted_at=(10, 5),
        times_as_fast=1.2,
    )  # fmt: skip
    other = Acceptance(
        work="prose", streams=1, tokens=100, drafts=10, draft_tokens=10, reached_at=(10,), accepted_at=(2,),
        times_as_fast=1.0,
    )  # fmt: skip
    Profile(model="m", drafter="auto", temperature=0.0, works=(first, other)).write(path)
    return path


def test_a_profile_gives_chances_by_place_of_one_work_or_of_all(tmp_path: Path) -> None:
    path = profile(tmp_path / "profile.json")
    code = Guessing.parse(f"{path}:code", None)
    assert code is not None
    assert [code.chance(place) for place in range(4)] == [0.5, 0.5, 0.0, 0.0]
    assert code.drafting == pytest.approx(20 / 85)
    every = Guessing.parse(str(path), 4)
    assert every is not None and every.tokens == 4
    assert [every.chance(place) for place in range(3)] == [12 / 30, 0.5, 0.0]
    assert every.drafting == pytest.approx(30 / (85 + 98))
    one = replica(code)
    simulate(one, requests(1, 3_000))
    steps = one.stats.steps - 1
    assert one.stats.drafts / steps == pytest.approx(20 / 85, abs=0.04)
    assert one.stats.accepted_at[0] / one.stats.drafts == pytest.approx(0.5, abs=0.08)
    assert one.stats.accepted_at[2] == 0


@pytest.mark.parametrize(
    ("speculation", "tokens", "message"),
    [
        ("1.5", None, "speculation is 1.5; the share of guessed tokens that are right is 0 to 1"),
        ("nan", None, "speculation is nan"),
        ("ngram", None, "neither off, nor a share of tokens such as 0.7, nor an acceptance profile"),
        ("off", 4, "speculation_tokens is 4, and speculation is off"),
        ("0.5", 0, "speculation_tokens is 0; it must be 1 to 16"),
        ("{path}:cod", None, "did you mean code"),
        ("{folder}", None, "cannot be read"),
    ],
)
def test_what_is_no_acceptance_is_refused(
    speculation: str, tokens: int | None, message: str, tmp_path: Path
) -> None:
    path = profile(tmp_path / "profile.json")
    with pytest.raises((InvalidParameter, SettingsError), match=message):
        Guessing.parse(speculation.format(path=path, folder=tmp_path), tokens)


def test_guesses_end_where_those_that_were_seen_did() -> None:
    """With a half at each place, a guess has 2 tokens on average, however many are asked for."""
    guessing = Guessing(chances=(1.0,), goes_on=(0.5,) * 7, tokens=8)
    done = simulate(replica(guessing), requests(1, 4_000))
    seen = bursts(done)
    mean = sum(0.5**place for place in range(8))
    assert sum(seen) / len(seen) == pytest.approx(1 + mean, abs=4 * 1.4 / math.sqrt(len(seen)))
