"""500 random requests answer alike with every drafter and every number of guesses, bit for bit."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from octavo.backends.base import TokenSample
from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.messages import Add, Stats
from octavo.models.store import StoredModel, open_model
from tests.fakes import request
from tests.models.tiny import write_tiny_llama

REQUESTS = 500
LONGEST = 120
Answers = dict[tuple[str, int], list[TokenSample]]


def traffic(ids: int) -> list[Add]:
    """Prompts that repeat themselves and one another, with every parameter that a choice depends on."""
    draw = random.Random(5)
    beginnings = [[draw.randrange(ids) for _ in range(draw.randrange(1, 50))] for _ in range(12)]
    adds = []
    for number in range(REQUESTS):
        prompt = list(draw.choice(beginnings)) + [draw.randrange(3, 12) for _ in range(draw.randrange(1, 20))]
        if draw.random() < 0.5:
            prompt += prompt[-draw.randrange(1, 20) :]
        count = draw.randrange(1, 30)
        greedy = draw.random() < 0.4
        add = request(
            f"r{number}",
            prompt,
            seed=number,
            max_tokens=count,
            n=3 if draw.random() < 0.15 else 1,
            temperature=0.0 if greedy else draw.choice([0.3, 0.7, 1.0]),
            top_p=draw.choice([0.5, 0.9, 1.0]),
            top_k=draw.choice([0, 0, 5, 40]),
            min_p=draw.choice([0.0, 0.0, 0.05]),
            repetition_penalty=draw.choice([1.0, 1.0, 1.2]),
            frequency_penalty=draw.choice([0.0, 0.2]),
            presence_penalty=draw.choice([0.0, 0.3]),
            logit_bias={draw.randrange(ids): draw.choice([-5.0, 4.0])} if draw.random() < 0.3 else None,
            min_tokens=draw.choice([0, 0, count // 2]),
            stop=draw.choice([(), (), ("e", "the")]),
            stop_token_ids=draw.choice([(), (), (5, 9)]),
            ignore_eos=draw.random() < 0.3,
            logprobs=draw.choice([None, 0, 3]),
            cache_salt=draw.choice(["", "a"]),
            tenant=draw.choice(["", "x"]),
        )
        if draw.random() < 0.3:
            predicted = tuple(draw.randrange(3, 12) for _ in range(draw.randrange(1, 30)))
            service = msgspec.structs.replace(add.service, prediction=predicted)
            add = msgspec.structs.replace(add, service=service)
        adds.append(add)
    return adds


def answers_of(model: StoredModel, adds: list[Add], **changes: object) -> tuple[Answers, Stats]:
    """Everything at once, in steps that cut prompts in pieces."""
    settings = {
        "model_dir": str(model.dir),
        "max_running": 24,
        "max_step_tokens": 64,
        "max_model_len": 2 * LONGEST,
        **changes,
    }
    engine = build_engine(msgspec.convert(settings, EngineConfig))
    for add in adds:
        engine.add(add)
    answers: Answers = {}
    steps = 0
    while not engine.idle:
        for item in engine.step().items:
            answers.setdefault((item.request_id, item.child), []).extend(item.samples)
        steps += 1
        if steps % 25 == 0:
            engine.check()
    engine.check()
    stats = engine.stats()
    assert stats.blocks_used == 0
    engine.close()
    return answers, stats


@pytest.mark.slow
def test_every_drafter_and_every_number_of_guesses(tiny_model_path: Path, tmp_path: Path) -> None:
    model = open_model(tiny_model_path, packed=True)
    other = open_model(write_tiny_llama(tmp_path / "other.gguf", seed=3), packed=True)
    adds = traffic(model.spec.vocab_size)
    ample = {"num_blocks": 2000, "max_running": 64, "max_step_tokens": 512, "prefix_cache": False}
    expected, plain = answers_of(model, adds, speculation="off", **ample)
    assert plain.drafts == 0 and len(expected) > REQUESTS
    preempted = 0
    drafters = ("ngram", "suffix", "auto", f"draft:{model.dir}", f"draft:{other.dir}")
    for drafter in drafters:
        for count in range(1, 9):
            memory = {"num_blocks": 60 if count % 3 == 0 else 200}
            answers, stats = answers_of(model, adds, speculation=drafter, speculation_tokens=count, **memory)
            assert answers == expected, f"{drafter}, {count} tokens"
            assert stats.draft_tokens > (20 if count % 3 == 0 else 300)
            preempted += stats.preemptions
            if drafter == f"draft:{model.dir}":
                assert stats.accepted_tokens > 0.97 * stats.draft_tokens  # but for what ends before
        answers, _ = answers_of(model, adds, speculation=drafter)
        assert answers == expected, f"{drafter}, as many as pay"
    assert preempted > 100
