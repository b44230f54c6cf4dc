"""PagedAttention's experiments (Kwon et al., SOSP 2023, arXiv:2309.06180). Knows trials and tables, no terminal.

The paper's own Orca is simulated as Orca is here: policy `continuous`, and a contiguous range for each request by first
fit. vLLM of that time is `prefill-first` with blocks of 16 tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import msgspec

from octavo.config import AllocatorName
from octavo.memory.accounting import Report
from octavo.simulation.deployment import Deployment
from octavo.simulation.papers.lengths import with_mean
from octavo.simulation.papers.sharing import sharing_parts, sharing_rows
from octavo.simulation.papers.table import Curve, Published, Result, Row
from octavo.simulation.papers.trial import Progress, Served, Trial, highest_rate, holding, utilization_for
from octavo.simulation.roofline import EFFICIENCIES
from octavo.workload.arrivals import Poisson
from octavo.workload.spec import Workload

__all__ = [
    "LEVEL_S",
    "MACHINES",
    "SYSTEMS",
    "WORKLOADS",
    "Machine",
    "parts",
    "reproduce",
    "system",
    "tokens_share",
]

LONGEST = 2048
LEVEL_S = 0.1
"""Mean normalized latency, seconds a token, at which sustained rates are compared: figure 12 gives no number, and its
curves have bent upwards there."""
_SPAN_S, _QUICK_S = 90.0, 15.0
"""How long requests arrive in a run; the paper's traces are of an hour. Alpaca's, with 15 times the rate, a quarter."""
_RATES_SHAREGPT = (0.5, 1.0, 2.0, 3.0)


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the paper's table 1."""

    model: str
    hardware: str
    accelerators: int
    slots: int
    """Tokens whose K and V fit."""


MACHINES = (
    Machine(model="opt-13b", hardware="a100-40", accelerators=1, slots=15_700),
    Machine(model="opt-66b", hardware="a100-40", accelerators=4, slots=9_700),
    Machine(model="opt-175b", hardware="a100-80", accelerators=8, slots=60_100),
)

SYSTEMS: dict[str, AllocatorName] = {
    "Orca (Max)": "reserved-max",
    "Orca (Pow2)": "reserved-pow2",
    "Orca (Oracle)": "reserved-oracle",
    "vLLM": "paged",
}


def _workload(rate: float, prompt: float, answer: float, sigmas: tuple[float, float]) -> Workload:
    return Workload(
        arrivals=Poisson(rate=rate),
        input=with_mean(prompt, sigmas[0], LONGEST // 2),
        output=with_mean(answer, sigmas[1], LONGEST // 2),
        duration_s=_SPAN_S,
    )


WORKLOADS = {
    "ShareGPT": _workload(2.0, 161.31, 337.99, (1.2, 0.9)),
    "Alpaca": _workload(30.0, 19.31, 58.45, (0.6, 0.9)),
}
"""Means from figure 11; how they spread is our choice, and so is that none is longer than half of the model's 2048."""

_MEMORY = {
    "Orca (Max)": Published.one(0.204, "figure 2", "text"),
    "Orca (Pow2)": Published.one(0.268, "figure 2", "memory"),
    "Orca (Oracle)": Published.one(0.382, "figure 2", "text"),
    "vLLM": Published.one(0.963, "figure 2", "notes"),
}
_IN_FLIGHT = {
    "ShareGPT": {"Orca (Max)": 7.00, "Orca (Pow2)": 9.81, "Orca (Oracle)": 13.62, "vLLM": 30.42},
    "Alpaca": {"Orca (Max)": 7.00, "Orca (Pow2)": 43.24, "Orca (Oracle)": 72.75, "vLLM": 132.44},
}
_IN_FLIGHT_PLACES = {"ShareGPT": "figure 13a", "Alpaca": "figure 13b"}
_SUSTAINED = {
    "Orca (Oracle)": Published(low=1.7, high=2.7, where="section 6.2, figure 12", checked="text"),
    "Orca (Max)": Published(low=2.7, high=8.0, where="section 6.2, figure 12", checked="text"),
}


def system(name: str, machine: Machine = MACHINES[0]) -> Served:
    """A system of the paper on one of its machines."""
    paged = SYSTEMS[name] == "paged"
    return Served(
        name=name,
        longest=LONGEST,
        deployment=Deployment(
            model=machine.model,
            hardware=machine.hardware,
            tensor_parallel=machine.accelerators,
            memory_utilization=utilization_for(
                machine.model, machine.hardware, machine.slots, machine.accelerators
            ),
            max_model_len=LONGEST,
            max_step_tokens=LONGEST,
            policy="prefill-first" if paged else "continuous",
            allocator=SYSTEMS[name],
            prefix_cache=False,
        ),
    )


def tokens_share(memory: Report) -> float:
    """Of the memory that is held, or free and of no use to who waits: what holds tokens. Memory that nobody asks for is
    not wasted."""
    taken = memory.utilization + memory.external_waste
    return memory.utilization * (1.0 - memory.internal_waste) / taken if taken else 0.0


def parts(quick: bool) -> int:
    """Of `reproduce`: trials of memory and requests in flight, searches, samples and beams, curves."""
    trials = len(SYSTEMS) * len(WORKLOADS) * (1 if quick else len(EFFICIENCIES))
    searches = (1 + len(_SUSTAINED)) * (1 if quick else len(MACHINES))
    return trials + searches + sharing_parts(quick) + len(SYSTEMS)


def reproduce(quick: bool, told: Progress) -> Result:
    """Everything, in minutes; `quick`: few requests."""
    span_s = _QUICK_S if quick else _SPAN_S
    efficiencies = ("typical",) if quick else tuple(EFFICIENCIES)

    @cache
    def trial(name: str, data: str, efficiency: str) -> Trial:
        told(f"{name}, {data}")
        own_s = span_s / 4 if data == "Alpaca" else span_s
        workload = msgspec.structs.replace(WORKLOADS[data], duration_s=own_s)
        return holding(system(name), workload, efficiency)

    rows = [*_memory(trial, efficiencies), *_in_flight(trial, efficiencies)]
    rows += sharing_rows(system("vLLM"), WORKLOADS, quick, told)
    for machine in MACHINES[:1] if quick else MACHINES:
        rows += _sustained(machine, span_s, told)
    return Result(
        paper="vllm",
        title="Efficient Memory Management for Large Language Model Serving with PagedAttention",
        source="Kwon et al., SOSP 2023, arXiv:2309.06180",
        settings=_settings(),
        missing=(
            (
                "vLLM's attention kernel of that time was 20 to 26 % slower than FasterTransformer's (section 7.1); "
                "here all systems have the same kernels."
            ),
            (
                "The paper's Orca finds memory with a buddy allocator, which rounds every range to a power of two; "
                "here ranges are as long as they must be, and the first hole that fits is taken."
            ),
            "vLLM may swap what it preempts to the host's memory; here it is computed again.",
        ),
        rows=tuple(rows),
        curves=_curves(span_s, told),
        quick=quick,
    )


_Ask = Callable[[str, str, str], Trial]


def _memory(trial: _Ask, efficiencies: tuple[str, ...]) -> list[Row]:
    rows = []
    shares = {name: tokens_share(trial(name, "ShareGPT", "typical").memory) for name in SYSTEMS}
    for name, published in _MEMORY.items():
        every = [tokens_share(trial(name, "ShareGPT", one).memory) for one in efficiencies]
        row = Row(
            group="KV memory that holds tokens, OPT-13B, ShareGPT at 2 requests/s",
            name=name,
            unit="share",
            published=published,
            simulated=shares[name],
            least=min(every),
            most=max(every),
        )
        rows.append(row if row.agrees else msgspec.structs.replace(row, why=_memory_why(name, shares)))
    return rows


def _memory_why(name: str, shares: dict[str, float]) -> str:
    if name == "Orca (Oracle)":
        return (
            "First fit takes ranges of the exact length. The paper's buddy allocator rounds them to powers of two; "
            f"ranges rounded so (Orca (Pow2) here) hold {shares['Orca (Pow2)']:.1%}."
        )
    if name == "Orca (Pow2)":
        return (
            "Here the whole sequence is rounded up once. In the paper the answer is rounded, and the buddy allocator "
            "rounds the sum again."
        )
    return "The spread of lengths is not published; with longer tails a reserved range is fuller."


def _in_flight(trial: _Ask, efficiencies: tuple[str, ...]) -> list[Row]:
    rows = []
    for data, published in _IN_FLIGHT.items():
        rate = WORKLOADS[data].rate or 0.0
        for name, value in published.items():
            every = [trial(name, data, one).memory.running for one in efficiencies]
            done = trial(name, data, "typical")
            row = Row(
                group=f"requests in flight, OPT-13B, {data} at {rate:g} requests/s",
                name=name,
                unit="count",
                published=Published.one(value, _IN_FLIGHT_PLACES[data], "notes"),
                simulated=done.memory.running,
                least=min(every),
                most=max(every),
            )
            rows.append(row if row.agrees else msgspec.structs.replace(row, why=_flight_why(row, done)))
    return rows


def _flight_why(row: Row, done: Trial) -> str:
    """Little's law: what is in flight is the rate times how long a request stays."""
    assert row.simulated is not None and row.published is not None and done.rate is not None
    stay_s = done.value("e2e_mean")
    full = done.memory.utilization + done.memory.external_waste
    words = (
        f"{full:.0%} of the memory is held or useless, {done.memory.preemptions} preemptions, "
        f"and a request takes {stay_s:.1f} s from arrival to end"
    )
    if full < 0.85:
        paper_s = row.published.low / done.rate
        cause = (
            f"its steps took longer. With kernels that reach little there are {row.most or row.simulated:.1f}"
            if paper_s > 1.1 * stay_s
            else "what is missing is the time in which so short a run fills and empties"
        )
        return f"Memory does not bind: {words}. By Little's law the paper's figure needs {paper_s:.1f} s each: {cause}."
    return f"Memory binds: {words}; how many fit follows from how lengths spread and ranges are rounded."


def _sustained(machine: Machine, span_s: float, told: Progress) -> list[Row]:
    """Rates at the same normalized latency, vLLM over the others; with typical kernels alone, since it takes long."""
    workload = msgspec.structs.replace(WORKLOADS["ShareGPT"], duration_s=span_s)
    rates: dict[str, float | None] = {}
    for name in ("vLLM", *_SUSTAINED):
        told(f"{machine.model}: highest rate of {name}")
        served = system(name, machine)

        def holds(rate: float, served: Served = served) -> bool:
            return holding(served, workload, rate=rate).value("normalized_mean") <= LEVEL_S

        rates[name], _ = highest_rate(holds, 1.0, tolerance=1.1)
    rows = []
    for name, published in _SUSTAINED.items():
        row = Row(
            group=f"sustained rate, vLLM over others, {machine.model}, ShareGPT",
            name=f"over {name}",
            unit="ratio",
            published=published,
            simulated=_over(rates["vLLM"], rates[name]),
        )
        if not row.agrees:
            row = msgspec.structs.replace(row, why=_rate_why(name, rates, machine))
        rows.append(row)
    return rows


def _over(top: float | None, below: float | None) -> float | None:
    return top / below if top is not None and below is not None else None


def _rate_why(name: str, rates: dict[str, float | None], machine: Machine) -> str:
    ours, others = rates["vLLM"], rates[name]
    pace = system("vLLM", machine).pace()
    return (
        f"vLLM sustains {ours or 0:.2f} requests/s and {name} {others or 0:.2f} at {LEVEL_S:g} s a token. "
        f"Room for {machine.slots:,} tokens is {machine.slots // LONGEST} ranges of {LONGEST:,}; up to "
        f"{pace.critical_batch:.0f} sequences a step a further one is nearly free here, which is where the rates part."
    )


def _curves(span_s: float, told: Progress) -> tuple[Curve, ...]:
    workload = msgspec.structs.replace(WORKLOADS["ShareGPT"], duration_s=span_s)
    rates = _RATES_SHAREGPT
    curves = []
    for name in SYSTEMS:
        told(f"curve of {name}")
        done = [holding(system(name), workload, rate=rate) for rate in rates]
        curves.append(
            Curve(
                figure="Normalized latency, OPT-13B, ShareGPT (the paper's figure 12a)",
                name=name,
                x_label="requests/s",
                y_label="mean normalized latency, s/token",
                x=rates,
                y=tuple(one.value("normalized_mean") for one in done),
                bound=LEVEL_S,
            )
        )
    return tuple(curves)


def _settings() -> tuple[tuple[str, str], ...]:
    machines = "; ".join(
        f"{one.model} on {one.accelerators} × {one.hardware}, {one.slots:,} KV slots" for one in MACHINES
    )
    lengths = "; ".join(f"{name}: {_words(one)}" for name, one in WORKLOADS.items())
    return (
        ("machines", f"{machines} (table 1)"),
        ("lengths", f"{lengths} (means: figure 11; the spread is our choice)"),
        ("arrivals", f"Poisson (section 6.1), for {_SPAN_S:g} s; the paper's for an hour"),
        ("blocks", "16 tokens (section 7.2); sequences of at most 2,048"),
        (
            "level",
            f"sustained: mean normalized latency up to {LEVEL_S:g} s/token (our choice; figure 12 has curves)",
        ),
    )


def _words(workload: Workload) -> str:
    both = []
    for length in (workload.input, workload.output):
        part = length.parts[0]  # type: ignore[union-attr]
        both.append(f"median {part.median:g}, sigma {part.sigma:g}")
    return f"prompts {both[0]}; answers {both[1]}"
