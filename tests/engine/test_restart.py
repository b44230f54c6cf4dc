"""Promise 2 with a real engine: kill -9 in the middle changes no token and no log-probability of any stream."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from octavo.backends.base import TokenSample
from octavo.config import EngineConfig
from octavo.engine.client import EngineClient
from octavo.models.store import open_model
from octavo.sampling.params import SamplingParams

Answer = list[tuple[int, tuple[TokenSample, ...], tuple[TokenSample | None, ...], str | None]]

REQUESTS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=40, logprobs=2, ignore_eos=True),
    "seeded": SamplingParams(seed=7, n=2, top_p=0.9, max_tokens=40, logprobs=1, ignore_eos=True),
    "penalties": SamplingParams(
        seed=8, n=2, presence_penalty=0.5, repetition_penalty=1.2, max_tokens=40, ignore_eos=True
    ),
    "prompt": SamplingParams(seed=9, prompt_logprobs=1, max_tokens=40, ignore_eos=True),
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


async def test_kill_9_in_the_middle_changes_nothing(config: EngineConfig) -> None:
    undisturbed = await answers(config, kills=0)
    assert [end for _, _, _, end in undisturbed["seeded"]] == ["length", "length"]
    assert len(undisturbed["prompt"][0][2]) == 23
    assert await answers(config, kills=3) == undisturbed
