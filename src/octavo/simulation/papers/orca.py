"""Orca's comparison of iteration-level scheduling with static batches (Yu et al., OSDI 2022). Knows trials and tables.

Each system's median normalized latency is compared at the paper's level: twice that of requests which are alone. A
request of a static batch returns with its batch, as FasterTransformer's do: see `with_their_batch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec

from octavo.bench.record import Exchange
from octavo.simulation.deployment import Deployment
from octavo.simulation.papers.table import Curve, Published, Result, Row
from octavo.simulation.papers.trial import Progress, Served, highest_rate, holding
from octavo.simulation.roofline import EFFICIENCIES
from octavo.workload.arrivals import Constant, Poisson
from octavo.workload.lengths import Uniform
from octavo.workload.spec import Workload

__all__ = ["WORKLOAD", "normalized_s", "reproduce", "system", "with_their_batch"]

LONGEST = 512 + 128
_SPAN_S, _QUICK_S = 240.0, 60.0
_BATCHES = (1, 2, 4, 8, 16, 32)
"""Most requests in a batch of the static engine: the best of them is compared, as in the paper."""
_ORCA_BATCH = 32
_LEVEL = 2.0
"""Times the latency of requests that are alone: 190 ms in the paper."""
_ALONE = 40
"""Requests, one after another."""

WORKLOAD = Workload(
    arrivals=Poisson(rate=1.0),
    input=Uniform(min=32, max=512),
    output=Uniform(min=1, max=128),
    duration_s=_SPAN_S,
)
"""The paper's synthetic trace (section 6.2)."""

_RATIO = Published.one(36.9, "abstract and section 6.2", "text")
_RATES = {
    "static": Published.one(0.185, "section 6.2", "memory"),
    "continuous": Published.one(6.81, "section 6.2", "memory"),
}
_ALONE_S = Published.one(0.095, "section 6.2: half of 190 ms", "memory")


def system(policy: str, most: int) -> Served:
    """175B parameters on 16 A100 40 GB. Both keep room for a request's whole length from its start."""
    static = policy == "static"
    return Served(
        name=f"static, at most {most}" if static else "continuous",
        longest=LONGEST,
        deployment=Deployment(
            model="opt-175b",
            hardware="a100-40",
            tensor_parallel=16,
            max_model_len=LONGEST,
            max_running=most,
            # All prompts of a batch in one step: they begin together.
            max_step_tokens=most * LONGEST if static else 8 * LONGEST,
            policy="static" if static else "continuous",
            allocator="reserved-oracle",
            prefix_cache=False,
        ),
    )


def with_their_batch(exchanges: Sequence[Exchange]) -> list[int]:
    """When each would have returned, if answers came only when their whole batch has ended, in microseconds and in the
    order of `exchanges`. Batches follow each other: one begins with the first token after all before it have ended."""
    ends = [0] * len(exchanges)
    batch: list[int] = []
    until_us = 0
    for place in sorted(range(len(exchanges)), key=lambda one: exchanges[one].chunks[0].at_us):
        if batch and exchanges[place].chunks[0].at_us > until_us:
            for one in batch:
                ends[one] = until_us
            batch = []
        batch.append(place)
        until_us = max(until_us, exchanges[place].end_us)
    for one in batch:
        ends[one] = until_us
    return ends


def normalized_s(exchanges: Sequence[Exchange], *, batched: bool) -> float:
    """The median of (end − arrival) / tokens of the answer."""
    done = [one for one in exchanges if one.error is None]
    ends = with_their_batch(done) if batched else [one.end_us for one in done]
    return median(
        (end - one.intended_us) / 1e6 / (one.output_tokens or 1) for one, end in zip(done, ends, strict=True)
    )


def alone_s(efficiency: str) -> float:
    """Of requests that come so far apart that none meets another."""
    lone = msgspec.structs.replace(
        WORKLOAD, arrivals=Constant(rate=0.001), requests=_ALONE, duration_s=None
    )
    done = holding(system("continuous", 1), lone, efficiency)
    return normalized_s(done.run.exchanges, batched=False)


def _latency_s(served: Served, rate: float, span_s: float, efficiency: str) -> float:
    workload = msgspec.structs.replace(WORKLOAD, duration_s=max(span_s, 20.0 / rate))
    done = holding(served, workload, efficiency, rate=rate)
    return normalized_s(done.run.exchanges, batched=served.deployment.policy == "static")


def reproduce(quick: bool, told: Progress) -> Result:
    """Everything, in minutes; `quick`: few requests and batches."""
    span_s = _QUICK_S if quick else _SPAN_S
    efficiencies = ("typical",) if quick else tuple(EFFICIENCIES)
    batches = (1, 8) if quick else _BATCHES
    alone = {one: alone_s(one) for one in efficiencies}
    rates: dict[tuple[str, str], float] = {}
    best: dict[str, int] = {}
    for efficiency in efficiencies:
        level_s = _LEVEL * alone[efficiency]

        def highest(served: Served, efficiency: str = efficiency, level_s: float = level_s) -> float:
            told(f"{served.name}, {efficiency}")
            found, _ = highest_rate(
                lambda rate: _latency_s(served, rate, span_s, efficiency) <= level_s, 1.0
            )
            return found or 0.0

        static = {most: highest(system("static", most)) for most in batches}
        best[efficiency] = max(static, key=lambda most: static[most])
        rates["static", efficiency] = static[best[efficiency]]
        rates["continuous", efficiency] = highest(system("continuous", _ORCA_BATCH))
    return Result(
        paper="orca",
        title="Orca: A Distributed Serving System for Transformer-Based Generative Models",
        source="Yu et al., OSDI 2022",
        settings=(
            ("machine", "OPT-175B (GPT-3's shape) on 16 A100 40 GB (table 1: 8 of them a layer, in 2 stages)"),
            ("lengths", "prompts uniform in 32 to 512, answers in 1 to 128 (section 6.2)"),
            ("arrivals", f"Poisson, for {_SPAN_S:g} s a run, and for 20 requests at least"),
            ("level", f"median normalized latency at most {_LEVEL:g} times that of requests alone (section 6.2)"),
            ("batches", f"at most {_ORCA_BATCH} with Orca; static: the best of {', '.join(map(str, batches))}"),
        ),
        missing=(
            "The paper's 16 accelerators are a pipeline of two stages with 8 in each; here all 16 share each layer. "
            "Pipelines, and the idle times that static batches leave in them, are not modelled.",
            "A static batch of the paper pads its prompts and computes what is padded; here only real tokens are "
            "computed.",
            "The paper's engines have kernels of their own each; here both have the same.",
        ),
        rows=_rows(alone, rates, best, efficiencies),
        curves=_curves(span_s, best["typical"], _LEVEL * alone["typical"], told),
        quick=quick,
    )


def _rows(
    alone: dict[str, float],
    rates: dict[tuple[str, str], float],
    best: dict[str, int],
    efficiencies: tuple[str, ...],
) -> tuple[Row, ...]:
    group = "175B, throughput at twice the latency of requests alone"
    rows = [_row(group, "latency of requests alone", "s/token", _ALONE_S, [alone[one] for one in efficiencies], alone["typical"])]
    for policy, name in (("static", "static batches (FasterTransformer)"), ("continuous", "Orca")):
        every = [rates[policy, one] for one in efficiencies]
        rows.append(_row(group, name, "1/s", _RATES[policy], every, rates[policy, "typical"]))
    every = [rates["continuous", one] / rates["static", one] for one in efficiencies if rates["static", one]]
    ratio = rates["continuous", "typical"] / rates["static", "typical"] if rates["static", "typical"] else None
    rows.append(_row(group, "Orca over static", "ratio", _RATIO, every, ratio))
    whys = (
        f"{alone['typical'] * 1e3:.0f} ms a token here, for 16 accelerators that read all weights together; in the "
        "paper's pipeline only 8 of the 16 work for a request that is alone, with the kernels of 2022.",
        f"With the best batch ({best['typical']}) a request that comes meets a batch that is on its way and waits for "
        "its end; a faster machine has more requests in the same time.",
        "The faster step and the lower level that follows from it move the rate.",
        f"Static batches hold {rates['static', 'typical']:.3f} requests/s and Orca "
        f"{rates['continuous', 'typical']:.2f}. Both have the same kernels and no pipeline here, so this is what "
        "scheduling alone gives; the rest of the paper's ratio is of its engines.",
    )
    return tuple(
        row if row.agrees else msgspec.structs.replace(row, why=why)
        for row, why in zip(rows, whys, strict=True)
    )


def _row(
    group: str, name: str, unit: str, published: Published, every: list[float], typical: float | None
) -> Row:
    return msgspec.convert(
        {
            "group": group, "name": name, "unit": unit, "published": msgspec.to_builtins(published),
            "simulated": typical, "least": min(every, default=None), "most": max(every, default=None),
        },
        Row,
    )  # fmt: skip


def _curves(span_s: float, best: int, level_s: float, told: Progress) -> tuple[Curve, ...]:
    curves = []
    for served, rates in (
        (system("static", best), (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)),
        (system("continuous", _ORCA_BATCH), (0.2, 0.4, 0.8, 1.6, 3.2, 6.4)),
    ):
        told(f"curve of {served.name}")
        latencies = tuple(_latency_s(served, rate, span_s, "typical") for rate in rates)
        curves.append(
            Curve(
                figure="Median normalized latency, 175B, the paper's figure 10",
                name=served.name,
                x_label="requests/s",
                y_label="median normalized latency, s/token",
                x=rates,
                y=latencies,
                bound=level_s,
            )
        )
    return tuple(curves)
