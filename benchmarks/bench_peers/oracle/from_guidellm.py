"""In GuideLLM's environment: its backend and its summary over the told requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Self

from benchmarks.bench_peers.oracle.told import Clock, reads, told

START_S = 1000.0
"""Its clock must not be at 0."""
http: Any = import_module("guidellm.backends.openai.http")
settings: Any = import_module("guidellm.schemas.backends.openai_http")
requests: Any = import_module("guidellm.schemas.base.request")
info: Any = import_module("guidellm.schemas.base.info")
accumulator: Any = import_module("guidellm.benchmark.schemas.accumulator")
metrics: Any = import_module("guidellm.benchmark.schemas.metrics")
SUMMARIES = (
    "request_latency", "time_to_first_token_ms", "inter_token_latency_ms", "time_per_output_token_ms",
    "prompt_token_count", "output_token_count", "requests_per_second", "prompt_tokens_per_second",
    "output_tokens_per_second", "tokens_per_second", "request_concurrency",
)  # fmt: skip
RANKS = ("p90", "p95", "p99")


class Answer:
    """What httpx gives it, as far as it looks."""

    def __init__(self, request: dict[str, Any], clock: Clock) -> None:
        self._request, self._clock = request, clock
        self._trace: Callable[[str, dict[str, Any]], Awaitable[None]] | None = None

    def stream(self, *, extensions: dict[str, Any], **_: object) -> Answer:
        self._trace = extensions["trace"]
        return self

    async def __aenter__(self) -> Self:
        connected_us = self._request["connected_us"]
        self._clock.us = self._request["started_us"] if connected_us is None else connected_us
        assert self._trace is not None
        written = {"request": SimpleNamespace(method=b"POST")}
        await self._trace("http11.send_request_headers.started", written)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._clock.us = self._request["end_us"]

    def raise_for_status(self) -> None:
        if self._request["status"] != 200:
            raise RuntimeError("status")

    async def aiter_lines(self) -> AsyncIterator[str]:
        for data in reads(self._request, self._clock):
            for line in data.decode().split("\n"):
                yield line
        if self._request["cut"]:
            raise RuntimeError("cut")


async def main() -> None:
    clock = Clock()
    http.time = SimpleNamespace(time=lambda: START_S + clock.s())
    good, bad, other = (accumulator.GenerativeRequestsAccumulator() for _ in range(3))
    starts, ends = [], []
    for request in told():
        backend = http.OpenAIHTTPBackend(
            settings.OpenAIHTTPBackendArgs(
                target="http://server", model="model", request_format="/v1/chat/completions"
            )
        )
        backend._async_client, backend._in_process = Answer(request, clock), True
        clock.us = request["started_us"]
        counted = requests.UsageMetrics(text_tokens=request["prompt_tokens"])
        asked = requests.GenerationRequest(columns={"text_column": [""]}, input_metrics=counted)
        of_request = info.RequestInfo(request_id=asked.request_id)
        of_request.timings.resolve_start = START_S + clock.s()
        response, kept = None, bad
        with contextlib.suppress(RuntimeError, ValueError):
            response = [one async for one, _ in backend.resolve(asked, of_request)][-1]
            kept = good
        of_request.timings.resolve_end = START_S + request["end_us"] / 1e6
        kept.update_estimate(response, asked, of_request, True)
        starts.append(of_request.timings.request_start)
        ends.append(of_request.timings.resolve_end)
    made = metrics.GenerativeMetrics.compile(
        SimpleNamespace(
            timings=SimpleNamespace(finalized_measure_start=min(starts), finalized_measure_end=max(ends)),
            completed=good,
            errored=bad,
            incomplete=other,
            config=SimpleNamespace(
                confidence=None, slo=None, strategy=SimpleNamespace(defines_arrival_schedule=False)
            ),
        )
    )
    totals = made.request_totals
    found: dict[str, float] = {
        "request_totals.successful": totals.successful,
        "request_totals.errored": totals.errored,
    }
    for name in SUMMARIES:
        summary = getattr(made, name).successful
        found |= {f"{name}.{stat}": getattr(summary, stat) for stat in ("mean", "median", "std_dev")}
        found |= {f"{name}.percentiles.{rank}": getattr(summary.percentiles, rank) for rank in RANKS}
    print(json.dumps(found))


asyncio.run(main())
