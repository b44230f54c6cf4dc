"""Promise 2 with a real engine: kill -9 in the middle changes no token and no log-probability of any stream."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import msgspec
import pytest

from octavo.backends.base import TokenSample
from octavo.config import EngineConfig, Pooling
from octavo.engine.client import EngineClient
from octavo.models.store import open_model
from octavo.sampling.grammar import Grammar
from octavo.sampling.params import EMBEDDING, SamplingParams

Answer = list[tuple[int, tuple[TokenSample, ...], tuple[TokenSample | None, ...], str | None]]

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string", "minLength": 20, "maxLength": 30}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
REQUESTS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=40, logprobs=2, ignore_eos=True),
    "seeded": SamplingParams(seed=7, n=2, top_p=0.9, max_tokens=40, logprobs=1, ignore_eos=True),
    "penalties": SamplingParams(
        seed=8, n=2, presence_penalty=0.5, repetition_penalty=1.2, max_tokens=40, ignore_eos=True
    ),
    "prompt": SamplingParams(seed=9, prompt_logprobs=1, max_tokens=40, ignore_eos=True),
    "json": SamplingParams(seed=11, n=2, max_tokens=60, logprobs=1, grammar=Grammar.json(SCHEMA)),
    "stop": SamplingParams(seed=10, n=3, stop=("e", "the"), max_tokens=40),
}


@pytest.fixture(scope="module")
def config(tiny_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    model = open_model(tiny_model_path, cache=tmp_path_factory.mktemp("store"), packed=False)
    return EngineConfig(model_dir=str(model.dir), backend="reference", num_blocks=100)


async def answers(config: EngineConfig, *, kills: int) -> dict[str, Answer]:
    """Every sequence's samples, prompt scores and end, with the engine killed `kills` times on the way."""
    client = await EngineClient.start(config)
    tokens = 0

    async def ask(name: str) -> Answer:
        nonlocal tokens
        n = REQUESTS[name].n
        samples: list[tuple[TokenSample, ...]] = [()] * n
        scores: list[tuple[TokenSample | None, ...]] = [()] * n
        reasons: list[str | None] = [None] * n
        async for output in client.generate(name, [70, 71, 72, *range(40, 60)], REQUESTS[name]):
            tokens += len(output.samples)
            samples[output.child] += output.samples
            scores[output.child] += output.prompt_samples
            reasons[output.child] = output.finish_reason
        return [(child, samples[child], scores[child], reasons[child]) for child in range(n)]

    tasks = {name: asyncio.create_task(ask(name)) for name in REQUESTS}
    for kill in range(kills):
        before = tokens
        async with asyncio.timeout(60):
            while tokens < before + 15 or not client.healthy:  # noqa: ASYNC110 - it comes from another process
                await asyncio.sleep(0.002)
        assert client.restarts == kill
        os.kill(client.info.pid, signal.SIGKILL)
    result = {name: await task for name, task in tasks.items()}
    assert client.restarts == kills
    await client.close()
    return result


async def vectors(config: EngineConfig, *, kill: bool) -> list[bytes]:
    """Of three texts each way, with the engine killed in the middle of them."""
    client = await EngineClient.start(config)
    asked: list[tuple[Pooling, int]] = [(pooling, n) for n in range(3) for pooling in ("mean", "last")]
    streams = [
        client.generate_all([(f"{pooling} {n}", list(range(40 + n, 240 + n)), EMBEDDING)], pooling=pooling)
        for pooling, n in asked
    ]
    if kill:
        async with asyncio.timeout(60):
            while not client.stats or client.stats.steps < 4:  # noqa: ASYNC110 - it comes from another process
                await asyncio.sleep(0.002)
        assert client.open_requests > 0
        os.kill(client.info.pid, signal.SIGKILL)
    found = [[output.vector async for output in stream] for stream in streams]
    assert client.restarts == kill
    await client.close()
    assert all(len(one) == 1 for one in found)
    return [one[0] for one in found]


async def test_kill_9_in_the_middle_of_a_prompt_changes_no_vector(config: EngineConfig) -> None:
    config = msgspec.structs.replace(config, max_running=8, max_step_tokens=32)
    undisturbed = await vectors(config, kill=False)
    assert len(set(undisturbed)) == 6
    assert await vectors(config, kill=True) == undisturbed


async def test_kill_9_in_the_middle_changes_nothing(config: EngineConfig) -> None:
    undisturbed = await answers(config, kills=0)
    assert [end for _, _, _, end in undisturbed["seeded"]] == ["length", "length"]
    assert len(undisturbed["prompt"][0][2]) == 23
    assert await answers(config, kills=3) == undisturbed
