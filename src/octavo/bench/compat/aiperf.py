"""A run by the definitions of NVIDIA's aiperf, the successor of genai-perf.

Of its oddities these change numbers:
- A request's latency ends with the last event that has something of the answer in it: an event with only a finish
  reason or a count of tokens, and `[DONE]`, are not waited for.
- Its inter-token latency is one number for each request (elsewhere called TPOT), and the distribution is over
  requests. The gaps between events are its inter-chunk latency.
- Tokens are counted by a local tokenizer unless it is told otherwise: inputs then without the chat's template.
- Its duration is from the first request's start to the last content of a valid request.
- The clock starts before a connection is asked for.
- A number that no request has is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from octavo.bench.compat.report import (
    WHOLE,
    CompatReport,
    Value,
    began_us,
    content_us,
    has_content,
    linear,
    seen,
)
from octavo.bench.record import Exchange, Kind, Run

__all__ = ["recompute"]

_VERSION = "0.13.0"
_SAID = int(Kind.ANSWER | Kind.TOOL)
_PERCENTS = (50, 75, 90, 95, 99)
_NOTE = (
    "aiperf counts tokens with a tokenizer of its own; these are the server's counts, as with "
    "--use-server-token-count."
)


def recompute(run: Run) -> CompatReport:
    """Its numbers, with the names of its JSON: a metric's, a dot, a statistic's."""
    exchanges = seen(run.exchanges)
    answers = [_Answer(one) for one in exchanges if one.error in WHOLE and has_content(one)]
    failed = len(exchanges) - len(answers)
    values = [Value("request_count.avg", len(answers), "requests")]
    if failed:
        values.append(Value("error_request_count.avg", failed, "requests"))
    if answers:
        values += _of(answers)
    return CompatReport("aiperf", _VERSION, values, [_NOTE])


class _Answer:
    """A valid record. Times in milliseconds; None where it has no such number."""

    def __init__(self, exchange: Exchange) -> None:
        times = content_us(exchange)
        self.start_ms = began_us(exchange) / 1e3
        self.ttft_ms = times[0] / 1e3 - self.start_ms
        self.latency_ms = times[-1] / 1e3 - self.start_ms
        self.gaps_ms = [(late - early) / 1e3 for early, late in pairwise(times)]
        said = [chunk.at_us for chunk in exchange.chunks if chunk.kind & _SAID]
        self.ttfo_ms = said[0] / 1e3 - self.start_ms if said else None
        self.input_tokens = exchange.wanted_input if exchange.input_tokens is None else exchange.input_tokens
        self.output_tokens = exchange.output_tokens
        if self.output_tokens is None and exchange.counted != "none":
            self.output_tokens = sum(chunk.tokens for chunk in exchange.chunks)
        tokens = self.output_tokens or 0
        self.itl_ms = (self.latency_ms - self.ttft_ms) / (tokens - 1) if tokens > 1 else None


def _of(answers: Sequence[_Answer]) -> list[Value]:
    itls = [one.itl_ms for one in answers if one.itl_ms is not None]
    outputs = [one.output_tokens for one in answers if one.output_tokens is not None]
    inputs = [one.input_tokens for one in answers if one.input_tokens is not None]
    started_ms = min(one.start_ms for one in answers)
    duration_s = (max(one.start_ms + one.latency_ms for one in answers) - started_ms) / 1e3
    whole = [
        1e3 * one.output_tokens / one.latency_ms
        for one in answers
        if one.output_tokens is not None and one.latency_ms
    ]
    values = _spread("time_to_first_token", [one.ttft_ms for one in answers], "ms")
    values += _spread("time_to_second_token", [one.gaps_ms[0] for one in answers if one.gaps_ms], "ms")
    values += _spread(
        "time_to_first_output_token", [one.ttfo_ms for one in answers if one.ttfo_ms is not None], "ms"
    )
    values += _spread("request_latency", [one.latency_ms for one in answers], "ms")
    values += _spread("inter_token_latency", itls, "ms", "one for each request")
    values += _spread("inter_chunk_latency", [gap for one in answers for gap in one.gaps_ms], "ms")
    values += _spread("output_token_throughput_per_user", [1e3 / one for one in itls if one], "tokens/s/user")
    values += _spread("e2e_output_token_throughput", whole, "tokens/s/user")
    values += _spread("output_sequence_length", outputs, "tokens")
    values += _spread(
        "input_sequence_length", inputs, "tokens", "with the chat's template, as the server counts"
    )
    values.append(Value("benchmark_duration.avg", duration_s, "s"))
    if duration_s:
        values.append(Value("request_throughput.avg", len(answers) / duration_s, "requests/s"))
        if outputs:
            values.append(Value("output_token_throughput.avg", sum(outputs) / duration_s, "tokens/s"))
        if inputs and outputs:
            both = (sum(inputs) + sum(outputs)) / duration_s
            values.append(Value("total_token_throughput.avg", both, "tokens/s"))
    return values


def _spread(name: str, values: Sequence[float], unit: str, note: str = "") -> list[Value]:
    if not values:
        return []
    found = {
        "avg": float(np.mean(values)),
        "min": min(values),
        "max": max(values),
        "std": float(np.std(values)),
    }
    ranks = zip(_PERCENTS, linear(values, _PERCENTS), strict=True)
    found |= {f"p{percent}": value for percent, value in ranks}
    return [Value(f"{name}.{stat}", value, unit, note) for stat, value in found.items()]
