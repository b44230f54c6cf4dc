"""A run by the definitions of GuideLLM.

Of its oddities these change numbers:
- Percentiles, the median too, are values that occurred: the first at which the share of values reached it.
- Its inter-token latency is one number for each request, weighted by the tokens after the first. Its time per output
  token takes the time to the first token in, and is weighted by the tokens.
- The clock starts when the headers are written, once a connection is open; a request ends with `[DONE]`.
- Rates are distributions over time: events closer than 0.1 ms are one, each counts for the time up to half-way to its
  neighbours, and the median is that of the local rates. Only their mean is events divided by time.
- Tokens of an answer are laid evenly between its first and its last.
- An event with an error makes the request fail, even after text.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from octavo.bench.compat.report import CompatReport, Value, began_us, content_us, seen
from octavo.bench.record import Exchange, Run

__all__ = ["recompute"]

_VERSION = "0.8.1"
_PERCENTS = (50, 90, 95, 99)
_MERGED_S = 1e-4
"""Events within this time are taken for one."""
_LEAST_S = 1e-6
"""The least time that the last event of all counts for."""

Floats = NDArray[np.float64]


def recompute(run: Run) -> CompatReport:
    """Its numbers of successful requests, with the names of its JSON: a metric's, a dot, a statistic's."""
    exchanges = seen(run.exchanges)
    answers = [_Answer(one) for one in exchanges if one.error is None and _usable(one)]
    values = [
        Value("request_totals.successful", len(answers), "requests"),
        Value("request_totals.errored", len(exchanges) - len(answers), "requests"),
    ]
    if exchanges:
        window = min(_wrote_us(one) for one in exchanges) / 1e6, max(one.end_us for one in exchanges) / 1e6
        values += _latencies(answers) + _rates(answers, *window)
    notes = ["Of successful requests; none is cancelled at the end, and no warm-up or cool-down is left out."]
    return CompatReport("guidellm", _VERSION, values, notes)


class _Answer:
    """The statistics of one successful request. Times in seconds; None where it has no such number."""

    def __init__(self, exchange: Exchange) -> None:
        times = content_us(exchange)
        self.start_s = _wrote_us(exchange) / 1e6
        self.end_s = exchange.end_us / 1e6
        self.first_s = times[0] / 1e6 if times else None
        self.last_s = times[-1] / 1e6 if times else self.end_s
        self.pieces = len(times)
        self.prompt_tokens = exchange.input_tokens or exchange.wanted_input or 0
        self.output_tokens = len(times) if exchange.output_tokens is None else exchange.output_tokens

    def itl_s(self) -> float:
        if self.first_s is None or self.output_tokens < 2:
            return 0.0
        return (self.last_s - self.first_s) / (self.output_tokens - 1)

    def tpot_s(self) -> float:
        return (self.last_s - self.start_s) / self.output_tokens if self.output_tokens else 0.0

    def prompt_timing(self) -> tuple[float, float]:
        return self.end_s if self.first_s is None else self.first_s, float(self.prompt_tokens)

    def output_timings(self) -> tuple[Floats, Floats]:
        """Tokens laid evenly over the time between the first and the last: times and tokens, [n] each."""
        if self.first_s is None or self.pieces < 2:
            return np.array([self.last_s]), np.array([float(self.output_tokens)])
        if self.output_tokens < 2:
            return np.array([self.first_s]), np.array([float(self.output_tokens > 0)])
        tokens = np.full(self.pieces, (self.output_tokens - 1) / (self.pieces - 1))
        tokens[0] = 1.0
        return np.linspace(self.first_s, self.last_s, num=self.pieces), tokens


def _wrote_us(exchange: Exchange) -> int:
    """When it began to write the headers: a connection that it had to open was open by then."""
    return began_us(exchange) if exchange.connected_us is None else exchange.connected_us


def _usable(exchange: Exchange) -> bool:
    return bool(exchange.output_tokens) or any(chunk.characters for chunk in exchange.chunks)


def _latencies(answers: Sequence[_Answer]) -> list[Value]:
    firsts = [(one.first_s - one.start_s) * 1e3 for one in answers if one.first_s is not None]
    itls = [one.itl_s() * 1e3 for one in answers]
    after = [max(one.output_tokens - 1, 0) for one in answers]
    tpots = [one.tpot_s() * 1e3 for one in answers]
    tokens = [one.output_tokens for one in answers]
    return [
        *_spread("request_latency", [one.end_s - one.start_s for one in answers], None, "s"),
        *_spread("time_to_first_token_ms", firsts, None, "ms"),
        *_spread("inter_token_latency_ms", itls, after, "ms", "one for each request, weighted by its tokens"),
        *_spread("time_per_output_token_ms", tpots, tokens, "ms", "with the time to the first token"),
        *_spread("prompt_token_count", [one.prompt_tokens for one in answers], None, "tokens"),
        *_spread("output_token_count", tokens, None, "tokens"),
    ]


def _rates(answers: Sequence[_Answer], start_s: float, end_s: float) -> list[Value]:
    prompts = np.array([one.prompt_timing() for one in answers]).reshape(-1, 2).T
    outputs = [one.output_timings() for one in answers] or [(np.empty(0), np.empty(0))]
    output_times, output_tokens = (np.concatenate(side) for side in zip(*outputs, strict=True))
    events = {
        "requests_per_second": (np.array([one.end_s for one in answers]), np.ones(len(answers))),
        "prompt_tokens_per_second": (prompts[0], prompts[1]),
        "output_tokens_per_second": (output_times, output_tokens),
        "tokens_per_second": (
            np.concatenate((prompts[0], output_times)),
            np.concatenate((prompts[1], output_tokens)),
        ),
    }
    values = []
    for name, (times, amounts) in events.items():
        unit = "requests/s" if name.startswith("requests") else "tokens/s"
        values += _spread(name, *_local_rates(times, amounts, start_s, end_s), unit)
    levels, times = _levels([(one.start_s, one.end_s) for one in answers], start_s, end_s)
    return values + _spread("request_concurrency", levels, times, "requests", "over time")


def _local_rates(times: Floats, amounts: Floats, start_s: float, end_s: float) -> tuple[Floats, Floats]:
    """Each event's amount over the time that it stands for, and that time, of events at `times` [n]."""
    inside = (times >= start_s) & (times <= end_s)
    times, amounts = _merged(
        np.concatenate(([start_s], times[inside], [end_s])), np.concatenate(([0.0], amounts[inside], [0.0]))
    )
    if len(times) < 2:
        return np.empty(0), np.empty(0)
    middles = (times[1:] + times[:-1]) / 2
    lasting = np.diff(np.concatenate(([times[0]], middles, [times[-1]])))
    lasting[-1] = max(lasting[-1], _LEAST_S)
    return amounts / lasting, lasting


def _levels(spans: Sequence[tuple[float, float]], start_s: float, end_s: float) -> tuple[Floats, Floats]:
    """How many spans are open, and for how long each such number holds."""
    if not spans:
        return np.empty(0), np.empty(0)
    edges = np.array(spans).T
    times, steps = _merged(edges.reshape(-1), np.repeat([1.0, -1.0], len(spans)))
    times = np.clip(np.concatenate(([start_s], times, [end_s])), start_s, end_s)
    open_ones = np.clip(np.cumsum(np.concatenate(([0.0], steps))), 0, None)
    return open_ones, np.diff(times)


def _merged(times: Floats, amounts: Floats) -> tuple[Floats, Floats]:
    """In order, those within _MERGED_S of the first of them taken together, at its time. [n] each, n > 0."""
    order = np.argsort(times, kind="stable")
    times, amounts = times[order], amounts[order]
    nexts = np.searchsorted(times, times + _MERGED_S, side="right").tolist()
    firsts, at = [], 0
    while at < len(nexts):
        firsts.append(at)
        at = nexts[at]
    return times[firsts], np.add.reduceat(amounts, firsts)


def _spread(
    name: str,
    values: Sequence[float] | Floats,
    weights: Sequence[float] | Floats | None,
    unit: str,
    note: str = "",
) -> list[Value]:
    """0 where there is no value, as it says itself."""
    found = dict.fromkeys(("mean", "std_dev", *(f"percentiles.p{one}" for one in _PERCENTS)), 0.0)
    points, inverse = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True)
    shares = np.zeros(len(points))
    np.add.at(shares, inverse, 1.0 if weights is None else np.asarray(weights, dtype=np.float64))
    points, shares = points[shares > 0], shares[shares > 0]
    if len(points):
        shares /= shares.sum()
        mean = float((points * shares).sum())
        reached = np.cumsum(shares)
        places = np.minimum(np.searchsorted(reached, np.array(_PERCENTS) / 100), len(points) - 1)
        found |= {"mean": mean, "std_dev": float((((points - mean) ** 2) * shares).sum() ** 0.5)}
        found |= {f"percentiles.p{one}": float(at) for one, at in zip(_PERCENTS, points[places], strict=True)}
    found["median"] = found.pop("percentiles.p50")
    return [Value(f"{name}.{stat}", value, unit, note) for stat, value in found.items()]
