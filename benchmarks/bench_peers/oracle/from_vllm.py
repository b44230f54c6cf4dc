"""In vLLM's environment: its request function and its sums over the told requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Self

from benchmarks.bench_peers.oracle.told import Clock, reads, told

functions: Any = import_module("vllm.benchmarks.lib.endpoint_request_func")
serve: Any = import_module("vllm.benchmarks.serve")
aiohttp: Any = import_module("aiohttp")
NAMES = {"total_input": "total_input_tokens", "total_output": "total_output_tokens"}
"""Its JSON has other names than its class."""
NOT_OURS = ("request_goodput", "rtfx")


class Answer:
    """What aiohttp gives it, as far as it looks."""

    reason = "not good"

    def __init__(self, request: dict[str, Any], clock: Clock) -> None:
        self.status = request["status"]
        self.content = self
        self._request, self._clock = request, clock

    def post(self, **_: object) -> Answer:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def iter_any(self) -> AsyncIterator[bytes]:
        for data in reads(self._request, self._clock):
            yield data
        if self._request["cut"]:
            raise aiohttp.ClientPayloadError("cut")


def tokenizer(text: str, *, add_special_tokens: bool) -> Any:
    """A token has four letters."""
    return SimpleNamespace(input_ids=[0] * (len(text) // 4))


async def main() -> None:
    clock = Clock()
    functions.time = SimpleNamespace(perf_counter=clock.s)
    requests = told()
    outputs = []
    for request in requests:
        clock.us = request["started_us"]
        asked = functions.RequestFuncInput(
            prompt="",
            api_url="http://server/v1/chat/completions",
            prompt_len=request["prompt_tokens"],
            output_len=1,
            model="model",
        )
        answer = Answer(request, clock)
        outputs.append(await functions.async_request_openai_chat_completions(asked, answer))
    duration_s = max(request["end_us"] for request in requests) / 1e6
    metrics, _ = serve.calculate_metrics([], outputs, duration_s, tokenizer, [90, 95, 99], {})
    found: dict[str, float] = {}
    for name, value in vars(metrics).items():
        if name.startswith("percentiles_"):
            found |= {f"p{rank}_{name.removeprefix('percentiles_')}": float(one) for rank, one in value}
        elif name not in NOT_OURS:
            found[NAMES.get(name, name)] = float(value)
    print(json.dumps(found))


asyncio.run(main())
