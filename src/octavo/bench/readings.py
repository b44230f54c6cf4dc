"""What was read from the server's metrics and from the measuring process itself, over a window.

Knows our names of readings (octavo.bench.projects), not the servers'.
"""

from __future__ import annotations

import math

import numpy as np

from octavo.bench.distribution import Distribution, Floats
from octavo.bench.record import ClientSample, ServerSample
from octavo.bench.window import Window

__all__ = ["client_scalars", "growth", "server_scalars"]


def growth(samples: list[ServerSample], name: str, window: Window) -> tuple[float, float] | None:
    """How much a counter grew in the window, and over how many seconds of it there are readings; None without two.

    A counter that falls began again from 0 (the server started anew), and what it shows has been added since, as
    Prometheus' `increase` has it. At the window's ends it is on the straight line between the readings around them.
    """
    at, values = _series(samples, name)
    if len(at) < 2:
        return None
    steps = np.diff(values)
    steps = np.where(steps < 0, values[1:], steps)
    grown = np.concatenate(([0.0], np.cumsum(steps)))
    start, end = max(window.start_us, at[0]), min(window.end_us, at[-1])
    if end <= start:
        return None
    return float(np.interp(end, at, grown) - np.interp(start, at, grown)), float(end - start) / 1e6


def server_scalars(samples: list[ServerSample], window: Window) -> dict[str, float | None]:
    """Of the server's metrics; None for what it does not have."""
    found: dict[str, float | None] = {}
    for ours, name in (("server_running", "running"), ("server_waiting", "waiting"), ("kv_use", "kv_use")):
        at, values = _series(samples, name)
        inside = values[(at >= window.start_us) & (at < window.end_us)]
        found[ours] = float(inside.mean()) if len(inside) else None
        found[f"{ours}_max"] = float(inside.max()) if len(inside) else None
        if name == "running":
            found["busy_share_estimate"] = float((inside > 0).mean()) if len(inside) else None
    for ours, name in (
        ("busy_share", "busy_s"),
        ("server_output_rate", "generated_tokens"),
        ("server_input_rate", "prompt_tokens"),
    ):
        grown = growth(samples, name, window)
        found[ours] = grown[0] / grown[1] if grown is not None else None
    if found["busy_share"] is None and (idle := growth(samples, "idle_s", window)) is not None:
        found["busy_share"] = 1 - idle[0] / idle[1]
    preempted = growth(samples, "preemptions", window)
    found["preemptions"] = preempted[0] if preempted is not None else None
    asked = growth(samples, "prefix_queried_tokens", window)
    hit = growth(samples, "prefix_hit_tokens", window)
    both = asked is not None and hit is not None and asked[0] > 0
    found["prefix_hit_share"] = hit[0] / asked[0] if both and hit and asked else None
    return found


def client_scalars(samples: list[ClientSample], window: Window) -> dict[str, float | None]:
    """Of the measuring process; None without a sample in the window."""
    inside = [one for one in samples if window.start_us <= one.at_us < window.end_us]
    lags = Distribution(np.array([one.lag_us for one in inside], dtype=np.int64), scale=1e6)
    return {
        "client_cpu": sum(one.cpu for one in inside) / len(inside) if inside else None,
        "client_cpu_max": max((one.cpu for one in inside), default=None),
        "loop_lag_p50": lags.percentile(50),
        "loop_lag_p99": lags.percentile(99),
    }


def _series(samples: list[ServerSample], name: str) -> tuple[Floats, Floats]:
    """When a reading was made, and what it was, without those that are no number."""
    pairs = [
        (one.at_us, one.values[name]) for one in samples if math.isfinite(one.values.get(name, math.nan))
    ]
    table = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]
