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
from octavo.simulation.papers.table import Curve, Published, Result, Row, Unit
from octavo.simulation.papers.trial import Progress, Served, highest_rate, holding
from octavo.simulation.roofline import EFFICIENCIES
from octavo.workload.arrivals import Constant, Poisson
from octavo.workload.lengths import Uniform
from octavo.workload.spec import Workload

__all__ = ["WORKLOAD", "normalized_s", "parts", "reproduce", "system", "with_their_batch"]

LONGEST = 512 + 128
_SPAN_S, _QUICK_S = 100.0, 15.0
_BATCHES = (1, 2, 4, 8, 16, 32)
"""Most requests in a batch of the static engine: the best of them is compared, as in the paper."""
_QUICK_BATCHES = (1, 8)
_ORCA_BATCH = 32
_LEVEL = 2.0
"""Times the latency of requests that are alone: 190 ms in the paper."""
_LEAST = 40
"""Requests in a run."""
_ALONE = 40
"""Requests, one after another."""

WORKLOAD = Workload(
    arrivals=Poisson(rate=1.0),
    input=Uniform(min=32, max=512),
    output=Uniform(min=1, max=128),
    duration_s=_SPAN_S,
)
"""The paper's synthetic trace (section 6.2)."""

_RATIO = Published.one(36.9, "abstract", "text")
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
    lone = msgspec.structs.replace(WORKLOAD, arrivals=Constant(rate=0.001), requests=_ALONE, duration_s=None)
    done = holding(system("continuous", 1), lone, efficiency)
    return normalized_s(done.run.exchanges, batched=False)


def _latency_s(served: Served, rate: float, span_s: float, efficiency: str) -> float:
    workload = msgspec.structs.replace(WORKLOAD, duration_s=max(span_s, _LEAST / rate))
    done = holding(served, workload, efficiency, rate=rate)
    return normalized_s(done.run.exchanges, batched=served.deployment.policy == "static")


def parts(quick: bool) -> int:
    """Of `reproduce`: searches and curves."""
    return (len(_QUICK_BATCHES) + 1) + 2 if quick else (len(_BATCHES) + 1) * len(EFFICIENCIES) + 2


def reproduce(quick: bool, told: Progress) -> Result:
    """Everything, in minutes; `quick`: few requests and batches."""
    span_s = _QUICK_S if quick else _SPAN_S
    efficiencies = ("typical",) if quick else tuple(EFFICIENCIES)
    batches = _QUICK_BATCHES if quick else _BATCHES
    alone = {one: alone_s(one) for one in efficiencies}
    rates: dict[tuple[str, str], float] = {}
    best: dict[str, int] = {}
    single: dict[str, float] = {}
    for efficiency in efficiencies:
        level_s = _LEVEL * alone[efficiency]

        def highest(served: Served, efficiency: str = efficiency, level_s: float = level_s) -> float:
            told(f"{served.name}, {efficiency}")
            found, _ = highest_rate(
                lambda rate: _latency_s(served, rate, span_s, efficiency) <= level_s, 2.0, tolerance=1.08
            )
            return found or 0.0

        static = {most: highest(system("static", most)) for most in batches}
        best[efficiency] = max(static, key=lambda most: static[most])
        single[efficiency] = static[1]
        rates["static", efficiency] = static[best[efficiency]]
        rates["continuous", efficiency] = highest(system("continuous", _ORCA_BATCH))
    return Result(
        paper="orca",
        title="Orca: A Distributed Serving System for Transformer-Based Generative Models",
        source="Yu et al., OSDI 2022",
        settings=(
            (
                "machine",
                "OPT-175B (GPT-3's shape) on 16 A100 40 GB (table 1: 8 of them a layer, in 2 stages)",
            ),
            ("lengths", "prompts uniform in 32 to 512, answers in 1 to 128 (section 6.2)"),
            ("arrivals", f"Poisson, for {_SPAN_S:g} s a run, and {_LEAST} requests at least"),
            (
                "level",
                f"median normalized latency at most {_LEVEL:g} times that of requests alone (section 6.2)",
            ),
            (
                "batches",
                f"at most {_ORCA_BATCH} with Orca; static: the best of {', '.join(map(str, batches))}",
            ),
        ),
        missing=(
            (
                "The paper's 16 accelerators are a pipeline of two stages with 8 in each; here all 16 share each "
                "layer. Pipelines, and the idle times that static batches leave in them, are not modelled."
            ),
            (
                "A static batch of the paper pads its prompts and computes what is padded; here only real tokens are "
                "computed."
            ),
            "The paper's engines have kernels of their own each; here both have the same.",
        ),
        rows=_rows(alone, rates, best, single, efficiencies),
        curves=_curves(span_s, best["typical"], _LEVEL * alone["typical"], told),
        quick=quick,
    )


def _rows(
    alone: dict[str, float],
    rates: dict[tuple[str, str], float],
    best: dict[str, int],
    single: dict[str, float],
    efficiencies: tuple[str, ...],
) -> tuple[Row, ...]:
    group = "175B, throughput at twice the latency of requests alone"
    whys = _whys(alone["typical"], rates["static", "typical"], rates["continuous", "typical"], best, single)
    rows = [
        _row(group, "latency of requests alone", "s/token", _ALONE_S, alone),
        _row(group, "static batches", "1/s", _RATES["static"], _of("static", rates, efficiencies)),
        _row(group, "Orca", "1/s", _RATES["continuous"], _of("continuous", rates, efficiencies)),
        _row(group, "Orca over static", "ratio", _RATIO, _over(rates, efficiencies)),
        _row(group, "Orca over static, one request at a time", "ratio", None, {
            one: rates["continuous", one] / rate for one, rate in single.items() if rate
        }),
    ]  # fmt: skip
    return tuple(row if row.agrees else msgspec.structs.replace(row, why=whys[row.name]) for row in rows)


def _whys(
    alone_s: float, slow: float, fast: float, best: dict[str, int], single: dict[str, float]
) -> dict[str, str]:
    """By a row's name. `slow` and `fast`: rates of static batches and of Orca."""
    faster = _ALONE_S.low / alone_s
    tokens = (1 + 128) / 2
    theirs = _RATES["static"].low
    at_once = theirs * tokens * _ALONE_S.low
    in_flight = fast * tokens * _LEVEL * alone_s
    over_single = fast / single["typical"] if single["typical"] else 0.0
    return {
        "latency of requests alone": (
            f"{alone_s * 1e3:.0f} ms a token here, where 16 accelerators share each layer and each reads a 16th of the "
            "weights a step. In the paper's pipeline 8 work at a time, which doubles it; of what is left, "
            f"{faster / 2:.1f} times, this simulation cannot tell the causes apart."
        ),
        "static batches": (
            f"A step is {faster:.1f} times as fast here, and the best batch, of {best['typical']}, does the rest. In "
            f"the paper {theirs:g} requests/s of {tokens:g} tokens with {_ALONE_S.low * 1e3:g} ms each are "
            f"{at_once:.1f} requests at once: at this level its batches were hardly more than one request."
        ),
        "Orca": (
            f"A step is {faster:.1f} times as fast here. But by Little's law up to {in_flight:.0f} are in flight, and "
            f"{_ORCA_BATCH} may be; the paper's pipeline has a batch of {_ORCA_BATCH} in each of its two stages."
        ),
        "Orca over static": (
            f"Static batches hold {slow:.2f} requests/s and Orca {fast:.1f}. With batches of one request static holds "
            f"{single['typical']:.2f}, and Orca {over_single:.0f} times that: how much of the paper's ratio is "
            "scheduling depends on what a static batch could do there."
        ),
    }


def _of(policy: str, rates: dict[tuple[str, str], float], efficiencies: tuple[str, ...]) -> dict[str, float]:
    return {one: rates[policy, one] for one in efficiencies}


def _over(rates: dict[tuple[str, str], float], efficiencies: tuple[str, ...]) -> dict[str, float]:
    """Continuous over static, where static batches hold any rate."""
    return {one: rates["continuous", one] / rate for one in efficiencies if (rate := rates["static", one])}


def _row(group: str, name: str, unit: Unit, published: Published | None, values: dict[str, float]) -> Row:
    return Row(
        group=group,
        name=name,
        unit=unit,
        published=published,
        simulated=values.get("typical"),
        least=min(values.values(), default=None),
        most=max(values.values(), default=None),
    )


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
