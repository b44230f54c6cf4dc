"""The schedulers' own reports of several replicas as one account. Knows reports, no memory."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.memory.accounting import Report

__all__ = ["account"]


def account(reports: Sequence[Report], queried_tokens: Sequence[int]) -> dict[str, float]:
    """By the names of octavo.bench.memory. A share is over the memory of all, weighed by the time that each was in
    steps and by what it is a share of; replicas have equally much memory. `queried_tokens`: of each, those of prompts
    that were looked up."""
    busy = [one.busy_s for one in reports]
    held = [one.busy_s * one.utilization for one in reports]
    stored = [share * (1 - one.internal_waste) for share, one in zip(held, reports, strict=True)]
    unshared = [
        share / (1 - one.sharing_saved) if one.sharing_saved < 1 else 0.0
        for share, one in zip(held, reports, strict=True)
    ]
    steps = [float(one.steps) for one in reports]
    return {
        "utilization": _mean([one.utilization for one in reports], busy),
        "internal_waste": _mean([one.internal_waste for one in reports], held),
        "external_waste": _mean([one.external_waste for one in reports], busy),
        "duplicate_waste": _mean([one.duplicate_waste for one in reports], stored),
        "sharing_saved": _mean([one.sharing_saved for one in reports], unshared),
        "prefix_hit_rate": _mean(
            [one.prefix_hit_rate for one in reports], [float(n) for n in queried_tokens]
        ),
        "running": _mean([one.running for one in reports], busy),
        "most_running": float(max((one.most_running for one in reports), default=0)),
        "idle_slots": _mean([one.idle_slots for one in reports], busy),
        "steps": sum(steps),
        "step_tokens": _mean([one.step_tokens for one in reports], steps),
        "preemptions": float(sum(one.preemptions for one in reports)),
    }


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    total = sum(weights)
    return (
        sum(value * weight for value, weight in zip(values, weights, strict=True)) / total if total else 0.0
    )
