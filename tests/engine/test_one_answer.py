"""Promise 1 through the whole engine: the same request gives the same tokens and log-probabilities, bit for bit,
whatever else runs, however the prompt is cut, preempted or not, on one thread or two, and after a restart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from octavo.backends.base import TokenSample
from octavo.config import EngineConfig, ProfileName
from octavo.engine.build import build_engine
from octavo.engine.engine import Engine
from octavo.engine.messages import Add, Stats
from octavo.engine.replay import replay
from octavo.models.store import open_model
from octavo.scheduling.inputs import Service
from tests.fakes import request, run
from tests.speculation.drafting import Drafting

Answers = dict[tuple[str, int], list[TokenSample]]
Tokens = dict[tuple[str, int], list[int]]

GREEDY = {"temperature": 0.0, "max_tokens": 20, "logprobs": 3}
SEEDED = {
    "temperature": 1.0, "top_p": 0.95, "top_k": 200, "min_p": 0.01, "repetition_penalty": 1.1, "presence_penalty": 0.2,
    "frequency_penalty": 0.1, "logit_bias": {30: 2.0}, "min_tokens": 4, "max_tokens": 20, "logprobs": 2, "seed": 1234,
}  # fmt: skip


class Runner:
    """Runs requests on a real engine: the default model on native, a tiny one (with few ids) on reference."""

    def __init__(self, backend: str, folder: Path, ids: int) -> None:
        self.backend = backend
        self.folder = folder
        self.ids = ids

    def engine(self, budget_tokens: int = 0, drafts: Tokens | None = None, **changes: object) -> Engine:
        """`budget_tokens`: a step's, also less than settings allow. `drafts`: guess these answers."""
        settings = {"kv_dtype": "bf16", "num_blocks": 600, "max_model_len": 512, "threads": 2, **changes}
        engine = build_engine(
            msgspec.convert(
                {"model_dir": str(self.folder), "backend": self.backend, **settings}, EngineConfig
            )
        )
        if budget_tokens:
            scheduler = engine._scheduler
            scheduler.config = msgspec.structs.replace(scheduler.config, budget_tokens=budget_tokens)
        if drafts is not None:
            guesses = Drafting(engine._scheduler, drafts, "each", 0, self.ids)
            engine._speculator = guesses  # type: ignore[assignment]
        return engine

    def __call__(
        self, *adds: Add, budget_tokens: int = 0, drafts: Tokens | None = None, **changes: object
    ) -> tuple[Answers, Stats]:
        engine = self.engine(budget_tokens, drafts, **changes)
        try:
            return answers_of(engine, *adds), engine.stats()
        finally:
            engine.close()


def answers_of(engine: Engine, *adds: Add) -> Answers:
    outputs = run(engine, *adds)
    return {key: [s for item in items for s in item.samples] for key, items in outputs.items()}


@pytest.fixture(scope="module", params=["native", "reference"])
def runner(request: pytest.FixtureRequest) -> Runner:
    if request.param == "native":
        return Runner("native", request.getfixturevalue("model_dir"), 49152)
    tiny = open_model(request.getfixturevalue("tiny_model_path"), packed=False)
    return Runner("reference", tiny.dir, tiny.spec.vocab_size)


@pytest.fixture(scope="module")
def adds(runner: Runner, shared_dir: Path) -> list[Add]:
    """Every oracle prompt, greedy and seeded."""
    oracle = json.loads((shared_dir / "oracle/smollm2-135m.json").read_text())
    prompts = [[token % runner.ids for token in entry["prompt_ids"]] for entry in oracle]
    return [
        request(f"{kind}{number}", prompt, **params)
        for number, prompt in enumerate(prompts)
        for kind, params in (("greedy", GREEDY), ("seeded", SEEDED))
    ]


@pytest.fixture(scope="module")
def alone(runner: Runner, adds: list[Add]) -> Answers:
    """What each request answers when nothing else is there."""
    answers: Answers = {}
    for add in adds:
        answers.update(runner(add, max_running=1, prefix_cache=False, speculation="off")[0])
    assert all(samples and all(s.logprob is not None for s in samples) for samples in answers.values())
    return answers


def test_in_a_batch_with_all_the_others(runner: Runner, adds: list[Add], alone: Answers) -> None:
    """Case 20, among others."""
    assert runner(*adds)[0] == alone


@pytest.mark.parametrize("chunk", [1, 7, 32])
def test_in_chunks(runner: Runner, adds: list[Add], alone: Answers, chunk: int) -> None:
    assert runner(*adds, budget_tokens=chunk, max_running=22)[0] == alone


def test_preempted(runner: Runner, adds: list[Add], alone: Answers) -> None:
    """Cases 2 and 20, on the real backends."""
    longest = max(len(add.prompt) for add in adds) + 21
    answers, stats = runner(*adds, num_blocks=longest // 16 + 6, max_model_len=longest)
    assert stats.preemptions >= 3
    assert answers == alone


def test_with_a_cold_and_a_warm_prefix_cache(runner: Runner, adds: list[Add]) -> None:
    """Case 10: at every length around a block, while the beginning is being computed, after it was given away."""
    longest = max(adds, key=lambda add: len(add.prompt))
    cuts = [
        request(f"{kind}{length}", (longest.prompt * 3)[:length], **params)
        for length in (15, 16, 17, 31, 32, 33, 64, 100)
        for kind, params in (("greedy", GREEDY), ("seeded", SEEDED))
    ]
    cold: Answers = {}
    for add in cuts:
        cold.update(runner(add, prefix_cache=False)[0])
    engine = runner.engine(max_step_tokens=64, num_blocks=48, max_model_len=240)
    try:
        assert answers_of(engine, *cuts) == cold
        assert answers_of(engine, *cuts) == cold
        assert engine.stats().prefix_hit_tokens > 0.5 * engine.stats().prefix_queried_tokens
        answers_of(engine, request("flood", [token % 7 for token in range(220)], max_tokens=9))
        assert answers_of(engine, *cuts) == cold
        scored = [
            msgspec.structs.replace(add, params=msgspec.structs.replace(add.params, prompt_logprobs=1))
            for add in cuts
        ]
        assert answers_of(engine, *scored) == cold
    finally:
        engine.close()


def test_behind_a_prefix_longer_than_a_segment_of_attention(runner: Runner) -> None:
    """Its blocks are the same for all, so native reads 256 tokens of it for all of them together."""
    prefix = [(7 * token) % 251 for token in range(300)]
    adds = [
        request(f"{kind}{number}", prefix + [11 + number] * (1 + 5 * number), **params)
        for number in range(2)
        for kind, params in (("greedy", GREEDY), ("seeded", SEEDED))
    ]
    lone: Answers = {}
    for add in adds:
        lone.update(runner(add, prefix_cache=False)[0])
    answers, stats = runner(*adds)
    assert stats.prefix_hit_tokens >= 3 * 288
    assert answers == lone


def test_the_next_turn_finds_the_answer_of_the_last(runner: Runner, adds: list[Add]) -> None:
    add = max((add for add in adds if add.request_id.startswith("greedy")), key=lambda add: len(add.prompt))
    engine = runner.engine()
    try:
        turn = list(add.prompt)
        for number in range(3):
            said = answers_of(engine, request(f"t{number}", turn, **{**GREEDY, "ignore_eos": True}))
            lone, _ = runner(
                request(f"t{number}", turn, **{**GREEDY, "ignore_eos": True}), prefix_cache=False
            )
            assert said == lone
            turn += [sample.token for sample in said[f"t{number}", 0]] + list(range(5))
        found = engine.stats().prefix_hit_tokens
        assert found >= 2 * len(add.prompt) - 32
    finally:
        engine.close()


def test_on_one_thread(runner: Runner, adds: list[Add], alone: Answers) -> None:
    assert runner(*adds, threads=1)[0] == alone


def test_three_children_are_three_seeds_alone(runner: Runner, adds: list[Add]) -> None:
    for add in [add for add in adds if add.request_id in ("greedy1", "seeded1", "seeded6")]:
        together, _ = runner(
            msgspec.structs.replace(add, params=msgspec.structs.replace(add.params, n=3)), *adds[:4]
        )
        for child in range(3):
            seed = (add.params.seed or 0) + child
            single, _ = runner(
                msgspec.structs.replace(add, params=msgspec.structs.replace(add.params, seed=seed))
            )
            assert together[add.request_id, child] == single[add.request_id, 0]


def test_resumed_after_a_restart(runner: Runner, adds: list[Add], alone: Answers) -> None:
    for cut in (1, 9):
        resumed = [
            msgspec.structs.replace(add, outputs=(tuple(s.token for s in alone[add.request_id, 0][:cut]),))
            for add in adds
            if len(alone[add.request_id, 0]) > cut
        ]
        answers, _ = runner(*resumed)
        for add in resumed:
            assert answers[add.request_id, 0] == alone[add.request_id, 0][cut:]


def test_a_recorded_run_replays_to_identical_plans(runner: Runner, adds: list[Add], tmp_path: Path) -> None:
    log = tmp_path / "steps.jsonl"
    _, stats = runner(*adds, num_blocks=40, max_step_tokens=48, max_running=22, step_log=str(log))
    [run] = replay(log)
    assert run.difference is None and run.steps == stats.steps


def test_depth_one_answers_as_depth_zero(runner: Runner, adds: list[Add], alone: Answers) -> None:
    if runner.backend == "native":
        pytest.skip("native computes at once: its depth is 0 (SettingsError otherwise)")
    assert runner(*adds, depth=1)[0] == alone
    answers, stats = runner(
        *adds, depth=1, num_blocks=24, max_step_tokens=25, max_running=22, max_model_len=300
    )
    assert answers == alone and stats.preemptions > 0


@pytest.mark.parametrize("squeezed", [False, True])
def test_with_drafts(runner: Runner, adds: list[Add], alone: Answers, squeezed: bool) -> None:
    """One to eight guesses in each step, right, wrong or either; also in chunks, preempted, and as n answers."""
    children = [
        request(f"children{number}", add.prompt, n=3, **SEEDED | {"max_tokens": 30})
        for number, add in enumerate(adds[:4])
    ]
    expected = alone | runner(*children, speculation="off")[0]
    known = {name: [sample.token for sample in samples] for name, samples in expected.items()}
    longest = max(len(add.prompt) for add in adds) + 31
    tight = {
        "num_blocks": longest // 16 + 24,
        "max_model_len": longest,
        "budget_tokens": 40,
        "max_running": 24,
    }
    answers, stats = runner(*adds, *children, drafts=known, **tight if squeezed else {})
    assert answers == expected
    assert stats.draft_tokens > stats.accepted_tokens > (30 if squeezed else 200)
    assert bool(stats.preemptions) is squeezed


@pytest.mark.parametrize("squeezed", [False, True])
def test_with_a_draft_model(runner: Runner, adds: list[Add], alone: Answers, squeezed: bool) -> None:
    """The model itself: it is always right, in chunks and preempted too, with memory of its own that is as small."""
    longest = max(len(add.prompt) for add in adds) + 21
    changes: dict[str, Any] = {"speculation": f"draft:{runner.folder}", "speculation_tokens": 3}
    if squeezed:
        changes |= {"num_blocks": longest // 16 + 24, "max_model_len": longest, "max_running": 24}
    answers, stats = runner(*adds, budget_tokens=40 if squeezed else 0, **changes)
    assert answers == alone
    assert stats.accepted_tokens == stats.draft_tokens > (30 if squeezed else 200)
    assert bool(stats.preemptions) is squeezed


def test_prompt_lookup(runner: Runner, adds: list[Add], alone: Answers) -> None:
    assert runner(*adds, speculation="ngram", speculation_tokens=5)[0] == alone
    again = tuple(adds[0].prompt[:40]) * 3
    loops = request("loops", again, temperature=0.0, max_tokens=60, logprobs=0, ignore_eos=True)
    plain, stats = runner(loops, speculation="off")
    assert stats.drafts == 0
    guessed, stats = runner(loops)
    assert guessed == plain and stats.draft_tokens > 0


CHANGES = [
    {"policy": "static"},
    {"policy": "continuous"},
    {"policy": "prefill-first"},
    {"allocator": "reserved-max", "max_running": 16},
    {"allocator": "reserved-pow2"},
    {"allocator": "reserved-oracle"},
    {"tbt_target_s": 0.5},
]


@pytest.mark.slow
@pytest.mark.parametrize("changes", CHANGES, ids=lambda one: "-".join(map(str, one.values())))
def test_under_every_policy_and_allocator(
    runner: Runner, adds: list[Add], alone: Answers, changes: dict[str, Any]
) -> None:
    assert runner(*adds, **changes)[0] == alone


def test_with_priorities_tenants_and_profiles(runner: Runner, adds: list[Add], alone: Answers) -> None:
    profiles: tuple[ProfileName | None, ...] = (None, "chat", "voice", "batch")
    served = [
        msgspec.structs.replace(
            one, service=Service(number % 3, f"key-{number % 2}", f"user-{number % 5}", profiles[number % 4])
        )
        for number, one in enumerate(adds)
    ]
    assert runner(*served, num_blocks=48, max_running=4)[0] == alone


def test_beams_are_the_same_among_others_and_preempted(runner: Runner, adds: list[Add]) -> None:
    prompt = max((one.prompt for one in adds), key=len)
    searched = [
        request(
            f"beams{width}",
            [(token + width) % runner.ids for token in prompt[:60]],
            beam_width=width,
            n=2,
            temperature=0.0,
            max_tokens=60,
            ignore_eos=True,
        )
        for width in (2, 3, 4)
    ]
    expected: Answers = {}
    for one in searched:
        expected |= runner(one)[0]
    together, stats = runner(*adds[:4], *searched, num_blocks=32, max_running=13, max_model_len=300)
    assert stats.preemptions > 0
    assert {key: together[key] for key in expected} == expected


def test_the_first_beam_is_at_least_as_likely_as_the_greedy_answer(runner: Runner, adds: list[Add]) -> None:
    prompt = adds[0].prompt[:40]
    greedy = request("greedy", prompt, temperature=0.0, max_tokens=12, logprobs=0, ignore_eos=True)
    beams = request(
        "beams", prompt, beam_width=4, temperature=0.0, max_tokens=12, logprobs=0, ignore_eos=True
    )
    answers = runner(greedy, beams)[0]
    likely, found = (sum(s.logprob or 0.0 for s in answers[name, 0]) for name in ("greedy", "beams"))
    assert found >= likely
