"""In aiperf's environment: its reader of streams, its endpoint and its metrics over the told requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from benchmarks.bench_peers.oracle.told import Clock, reads, told

START_US = 1_000_000
"""Its clock must not be at 0."""
sse: Any = import_module("aiperf.transports.sse_utils")
models: Any = import_module("aiperf.common.models.record_models")
dicts: Any = import_module("aiperf.metrics.metric_dicts")
no_value: Any = import_module("aiperf.common.exceptions").NoMetricValue


def metric(module: str, name: str) -> Any:
    return getattr(import_module(f"aiperf.metrics.types.{module}"), name)


RECORD = [
    metric("ttft_metric", "TTFTMetric"),
    metric("ttst_metric", "TTSTMetric"),
    metric("time_to_first_output_token_metric", "TimeToFirstOutputTokenMetric"),
    metric("request_latency_metric", "RequestLatencyMetric"),
    metric("output_sequence_length_metric", "OutputSequenceLengthMetric"),
    metric("input_sequence_length_metric", "InputSequenceLengthMetric"),
    metric("inter_token_latency_metric", "InterTokenLatencyMetric"),
    metric("inter_chunk_latency_metric", "InterChunkLatencyMetric"),
    metric("output_token_throughput_metrics", "OutputTokenThroughputPerUserMetric"),
    metric("e2e_output_throughput_metric", "E2EOutputTokenThroughputMetric"),
]
"""Each after those that it needs."""
FIRST = metric("min_request_metric", "MinRequestTimestampMetric")
LAST = metric("max_response_metric", "MaxResponseTimestampMetric")
TOTALS = [
    metric("output_sequence_length_metric", "TotalOutputSequenceLengthMetric"),
    metric("input_sequence_length_metric", "TotalInputSequenceLengthMetric"),
    metric("benchmark_duration_metric", "BenchmarkDurationMetric"),
]
RATES = [
    metric("request_throughput_metric", "RequestThroughputMetric"),
    metric("output_token_throughput_metrics", "OutputTokenThroughputMetric"),
    metric("total_token_throughput", "TotalTokenThroughputMetric"),
]
STATS = ("avg", "min", "max", "std", "p50", "p75", "p90", "p95", "p99")


async def record_of(request: dict[str, Any], clock: Clock) -> Any:
    """Its parsed record; None for an error."""
    began_ns = (START_US + request["started_us"]) * 1000
    made = models.RequestRecord(start_perf_ns=began_ns, timestamp_ns=began_ns)
    made.end_perf_ns = (START_US + request["end_us"]) * 1000 + 1
    if request["status"] != 200 or request["cut"]:
        return None

    async def body() -> AsyncIterator[bytes]:
        for data in reads(request, clock):
            yield data

    messages = []
    async for message in sse.AsyncSSEStreamReader(body()):
        sse.AsyncSSEStreamReader.inspect_message_for_error(message)
        messages.append(message)
    endpoint = import_module("aiperf.endpoints.openai_chat").ChatEndpoint
    endpoint = endpoint.__new__(endpoint)
    endpoint.debug = lambda *_: None
    responses = [one for message in messages if (one := endpoint.parse_response(message))]
    usage = models.find_last_non_empty_usage(responses)
    text = "".join(one.data.get_text() for one in responses if one.data)
    counts = models.TokenCounts(
        input=usage.prompt_tokens if usage else request["prompt_tokens"],
        output=usage.completion_tokens
        if usage
        else len(text) // 4,  # as a tokenizer: a token has four letters
    )
    record = models.ParsedResponseRecord(request=made, responses=responses, token_counts=counts)
    return record if record.valid else None


async def main() -> None:
    clock = Clock()
    sse.time = SimpleNamespace(perf_counter_ns=lambda: START_US * 1000 + clock.ns())
    records = [await record_of(request, clock) for request in told()]
    valid = [record for record in records if record is not None]
    values: dict[str, list[float]] = {one.tag: [] for one in (*RECORD, FIRST, LAST)}
    for record in valid:
        of_record = dicts.MetricRecordDict()
        for one in (*RECORD, FIRST, LAST):
            try:
                value = of_record[one.tag] = one()._parse_record(record, of_record)
            except no_value:
                continue
            values[one.tag] += value if isinstance(value, list) else [value]
    found: dict[str, float] = {
        "request_count.avg": len(valid),
        "error_request_count.avg": len(records) - len(valid),
    }
    results = dicts.MetricResultsDict()
    results |= {
        FIRST.tag: min(values[FIRST.tag]),
        LAST.tag: max(values[LAST.tag]),
        "request_count": len(valid),
    }
    numpy: Any = import_module("numpy")
    for one in RECORD:
        numbers = numpy.array(values[one.tag], dtype=float)
        results[one.tag] = float(numbers.sum())
        summary = dicts.metric_result_from_array(one.tag, "", "", numbers, float(numbers.sum()))
        scale = 1e6 if str(one.unit) == "ns" else 1.0  # shown in milliseconds
        found |= {f"{one.tag}.{stat}": getattr(summary, stat) / scale for stat in STATS}
    for one in (*TOTALS, *RATES):
        results[one.tag] = one()._derive_value(results)
    found["benchmark_duration.avg"] = results["benchmark_duration"] / 1e9
    found |= {f"{one.tag}.avg": results[one.tag] for one in RATES}
    print(json.dumps(found))


asyncio.run(main())
