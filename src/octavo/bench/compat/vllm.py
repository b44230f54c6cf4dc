"""A run by the definitions of `vllm bench serve`, the client that vLLM has grown out of its benchmark_serving.py.

Of its oddities these change numbers:
- A token's time is that of an event with a choice, whatever is in it: the role alone ends the TTFT, and empty pieces,
  the last with only a finish reason among them, are gaps in the ITL.
- The clock starts before a connection is asked for.
- E2EL ends with the last event with a choice, not with the count of tokens and `[DONE]` after it.
- Rates divide by the time until all tasks have ended, failed ones too, and count only what was successful.
- Events with an error in an answer that had begun are passed over: such an answer is successful.
- The median and percentiles of no value at all are 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil

import numpy as np

from octavo.bench.compat.report import WHOLE, CompatReport, Value, began_us, linear, seen
from octavo.bench.record import Exchange, Kind, Run

__all__ = ["recompute"]

_VERSION = "0.32.0"
_CHOICE = int(Kind.ROLE | Kind.ANSWER | Kind.REASONING | Kind.TOOL | Kind.FINISH | Kind.EMPTY)
_PERCENTS = (90, 95, 99)
"""It reports 99 by default, and others with --metric-percentiles."""


def recompute(run: Run) -> CompatReport:
    """Its numbers, with the names of its JSON."""
    exchanges = seen(run.exchanges)
    answers = [_Answer(one) for one in exchanges if _successful(one)]
    duration_s = max((one.end_us for one in exchanges), default=0) / 1e6
    inputs = sum(one.input_tokens for one in answers)
    outputs = sum(one.output_tokens for one in answers)
    values = [
        Value("duration", duration_s, "s", "from the run's beginning"),
        Value("completed", len(answers), "requests"),
        Value("failed", len(exchanges) - len(answers), "requests"),
        Value("total_input_tokens", inputs, "tokens"),
        Value("total_output_tokens", outputs, "tokens"),
        Value("request_throughput", _per(len(answers), duration_s), "requests/s"),
        Value("output_throughput", _per(outputs, duration_s), "tokens/s"),
        Value("total_token_throughput", _per(inputs + outputs, duration_s), "tokens/s"),
    ]
    values += _busiest(answers)
    tpots = [
        (one.latency_s - one.ttft_s) / (one.output_tokens - 1) for one in answers if one.output_tokens > 1
    ]
    values += _spread("ttft", [one.ttft_s for one in answers])
    values += _spread("tpot", tpots)
    values += _spread("itl", [gap for one in answers for gap in one.gaps_s])
    values += _spread("e2el", [one.latency_s for one in answers])
    return CompatReport("vllm", _VERSION, values, _notes(exchanges))


class _Answer:
    """What its request function keeps of a successful request. Times in seconds."""

    def __init__(self, exchange: Exchange) -> None:
        times = _choices_us(exchange)
        began = began_us(exchange)
        self.start_s = began / 1e6
        self.ttft_s = (times[0] - began) / 1e6
        self.latency_s = (times[-1] - began) / 1e6
        self.gaps_s = [(late - early) / 1e6 for early, late in pairwise(times)]
        self.token_times_s = [one / 1e6 for one in times]
        self.input_tokens = exchange.input_tokens or exchange.wanted_input or 0
        self.output_tokens = exchange.output_tokens or sum(chunk.tokens for chunk in exchange.chunks)


def _choices_us(exchange: Exchange) -> list[int]:
    return [chunk.at_us for chunk in exchange.chunks if chunk.kind & _CHOICE]


def _successful(exchange: Exchange) -> bool:
    if exchange.status != 200 or exchange.error not in WHOLE:
        return False
    return any(chunk.kind & _CHOICE for chunk in exchange.chunks)


def _busiest(answers: Sequence[_Answer]) -> list[Value]:
    """Its two peaks, both over whole seconds from the first request on: events with a choice (each taken for a token)
    that came in one, and requests that were under way at any time in one."""
    tokens, requests = 0, 0
    if answers:
        first = min(one.start_s for one in answers)
        seconds = ceil(max(one.start_s + one.latency_s for one in answers) - first) + 1
        came = np.zeros(seconds, dtype=np.int64)
        active = np.zeros(seconds, dtype=np.int64)
        for one in answers:
            np.add.at(came, [int(at - first) for at in one.token_times_s], 1)
            active[int(one.start_s - first) : int(one.start_s + one.latency_s - first) + 1] += 1
        tokens, requests = int(came.max()), int(active.max())
    return [
        Value("max_output_tokens_per_s", tokens, "tokens/s", "events with a choice, each taken for a token"),
        Value("max_concurrent_requests", requests, "requests", "in any part of the same second"),
    ]


def _spread(name: str, values_s: Sequence[float]) -> list[Value]:
    values_ms = [one * 1000 for one in values_s or [0.0]]
    found = [
        Value(f"mean_{name}_ms", float(np.mean(values_ms)), "ms"),
        Value(f"median_{name}_ms", float(np.median(values_ms)), "ms"),
        Value(f"std_{name}_ms", float(np.std(values_ms)), "ms"),
    ]
    ranks = zip(_PERCENTS, linear(values_ms, _PERCENTS), strict=True)
    return found + [Value(f"p{percent}_{name}_ms", value, "ms") for percent, value in ranks]


def _per(amount: float, duration_s: float) -> float:
    return amount / duration_s if duration_s else 0.0


def _notes(exchanges: Sequence[Exchange]) -> list[str]:
    notes = []
    if any(one.output_tokens is None and one.error in WHOLE for one in exchanges):
        notes.append(
            "Some answers came without a count of their tokens. vLLM's client counts them again with a tokenizer; "
            "here they are what our client counted."
        )
    if any(one.error == "timeout" for one in exchanges):
        notes.append("Requests that our client gave up are failures here; vLLM's client waits for six hours.")
    return notes
