"""What a machine cannot exceed, by the roofline and without a simulation: a search begins with it. Knows no scheduler.

In a steady state every answer of O tokens brings one prompt of P. With B sequences that decode, a step has B tokens of
theirs and B · P / O of prompts, so it takes T(B) = seconds(tokens = B + B·P/O, …), and B / (T · O) requests a second
are answered. The most of it over all B that memory and a bound on the time between tokens allow is more than any
scheduler gets out of the machine, since nothing ever waits in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from octavo.bench.slo import Slo
from octavo.simulation.deployment import Deployment
from octavo.simulation.pace import Pace
from octavo.timing.step_time import StepLoad
from octavo.workload.summary import Summary

__all__ = ["Mean", "highest_rate", "mean_of", "most_at_once", "step_bound_s"]

_GROWTH = 1.15
"""From one batch that is tried to the next."""
_STATS_OF_MOST = ("mean", "p90", "p95", "p99", "p99_9", "max")
"""A step that takes longer than the bound on average breaks a bound on these; on a median it need not."""


class Mean(msgspec.Struct, frozen=True, kw_only=True):
    """A workload's request, on average. Tokens."""

    prompt: float
    computed: float
    """Of the prompt: what an endless prefix cache would not have."""
    output: float


def mean_of(summary: Summary, *, prefix_cache: bool) -> Mean:
    """Raises ValueError for texts whose tokens nobody counted."""
    if summary.input is None:
        raise ValueError("the workload has texts whose tokens nobody counted")
    hit = (summary.hit_rate or 0.0) if prefix_cache else 0.0
    prompt = summary.input.mean
    return Mean(prompt=prompt, computed=max(prompt * (1.0 - hit), 1.0), output=max(summary.output.mean, 1.0))


def step_bound_s(slo: Slo) -> float:
    """How long a step may be on average, at the most, by what the SLO says of the time between tokens."""
    bounds = [math.inf]
    for part in slo.parts:
        metric, _, stat = part.name.partition("_")
        if metric in ("tpot", "itl", "icl") and stat in _STATS_OF_MOST:
            bounds.append(part.bound)
    bounds += [one.bound for one in slo.requests if one.metric == "tpot" and one.share is None]
    return min(bounds)


def most_at_once(deployment: Deployment, mean: Mean) -> int:
    """Requests whose K and V fit beside each other at their full length, and that may run. Raises CapacityError."""
    limits = deployment.settings.limits
    tokens = limits.num_blocks * limits.block_size
    return min(int(tokens // (mean.prompt + mean.output)), limits.max_slots)


def highest_rate(deployment: Deployment, pace: Pace, mean: Mean, step_s: float) -> float:
    """Requests a second that one replica cannot exceed, with steps of `step_s` at the most; 0 where not even one
    request alone has such steps. Raises CapacityError where the weights do not fit."""
    limits = deployment.settings.limits
    # Halfway through its answer a sequence holds its prompt and half of the answer; beginnings that are shared once.
    tokens = limits.num_blocks * limits.block_size
    most = min(tokens / (mean.computed + mean.output / 2), limits.max_slots)
    best = 0.0
    for batch in _batches(most):
        seconds = pace.seconds(_load(batch, mean))
        if pace.seconds(StepLoad(1, 1, int(mean.prompt), 0)) <= step_s and (seconds <= step_s or batch <= 1):
            best = max(best, batch / (seconds * mean.output))
    return best


def _load(batch: float, mean: Mean) -> StepLoad:
    prompts = batch / mean.output
    computed = prompts * mean.computed
    kept = mean.prompt - mean.computed
    pairs = prompts * mean.computed * (kept + mean.computed / 2)
    kv_tokens = batch * (mean.prompt + mean.output / 2)
    # Means, and no whole numbers.
    return StepLoad._make((batch + computed, batch + prompts, kv_tokens, pairs, batch + prompts))


def _batches(most: float) -> Iterator[float]:
    batch = 1.0
    while batch < most:
        yield batch
        batch *= _GROWTH
    yield max(most, 1.0)
