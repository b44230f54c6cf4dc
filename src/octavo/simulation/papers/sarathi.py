"""Sarathi-Serve's capacity experiments (Agrawal et al., OSDI 2024, arXiv:2403.02310). Knows trials and tables.

Capacity is the highest rate at which 99 % of the gaps between tokens keep a limit, and half of the requests wait at
most 2 s to be begun. Settings beside the paper's text are those of the authors' own files: microsoft/sarathi-serve,
osdi-experiments/figure-5-6 (`mistral7b_strict.yml` and its neighbours, and README.md).
"""

from __future__ import annotations

import msgspec

from octavo.config import PolicyName
from octavo.simulation.deployment import Deployment
from octavo.simulation.papers.lengths import with_median
from octavo.simulation.papers.table import Checked, Curve, Published, Result, Row
from octavo.simulation.papers.trial import Progress, Served, Trial, highest_rate, holding
from octavo.simulation.roofline import EFFICIENCIES, Roofline
from octavo.timing.step_time import StepLoad
from octavo.workload.arrivals import Poisson
from octavo.workload.lengths import Length
from octavo.workload.spec import Workload

__all__ = [
    "DATA",
    "DELAY_S",
    "Limit",
    "capacity",
    "holds",
    "parts",
    "prompt_s",
    "reproduce",
    "system",
    "workload",
]

DELAY_S = 2.0
"""The median scheduling delay up to which a rate counts as sustained (section 5.1)."""
_SPAN_S, _QUICK_S = 60.0, 20.0
"""How long requests arrive in a run; the paper's runs have 2,048 requests."""

_START = 0.5
"""Requests a second, where the search begins: from below. Above what it can do, a system that computes prompts first
may seem to hold the limit: prompts never cease, no decode is in a step, and one gap a request, as long as the run, is
less than a hundredth of all."""


class Data(msgspec.Struct, frozen=True, kw_only=True):
    """A data set of the paper's table 2."""

    input: Length
    output: Length
    longest: int
    """Longer sequences were left out (section 5)."""
    median_prompt: int
    facts: str


DATA = {
    "openchat_sharegpt4": Data(
        input=with_median(1730, 5696, 7168),
        output=with_median(415, 834, 1024),
        longest=8192,
        median_prompt=1730,
        facts="prompts: median 1,730, P90 5,696; answers: 415, 834; sequences up to 8,192",
    ),
    "arxiv_summarization": Data(
        input=with_median(7059, 12985, 15360),
        output=with_median(208, 371, 1024),
        longest=16384,
        median_prompt=7059,
        facts="prompts: median 7,059, P90 12,985; answers: 208, 371; sequences up to 16,384",
    ),
}


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """An SLO of the paper's table 3, and Sarathi's budget under it."""

    name: str
    tbt_s: float
    """99 % of the gaps between tokens."""
    budget: int


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model on its machine, with its limits."""

    name: str
    hardware: str
    accelerators: int
    limits: tuple[Limit, ...]


MISTRAL = Model(
    name="mistral-7b",
    hardware="a100-80",
    accelerators=1,
    limits=(Limit(name="strict", tbt_s=0.1, budget=512), Limit(name="relaxed", tbt_s=0.5, budget=2048)),
)
YI = Model(
    name="yi-34b",
    hardware="a100-80",
    accelerators=2,
    limits=(Limit(name="strict", tbt_s=0.2, budget=512), Limit(name="relaxed", tbt_s=1.0, budget=2048)),
)

_SYSTEMS: dict[str, tuple[PolicyName, int]] = {
    "vLLM": ("prefill-first", 128),
    "Orca": ("continuous", 16),
    "Sarathi-Serve": ("stall-free", 128),
}
"""The policy, and how many sequences may run: as in the authors' files."""


def _published(value: float, where: str, checked: Checked) -> Published:
    return Published.one(value, where, checked)


_RATIOS: dict[tuple[str, str, str, str], Published] = {
    ("mistral-7b", "openchat_sharegpt4", "strict", "vLLM"): _published(2.6, "abstract", "text"),
    ("mistral-7b", "openchat_sharegpt4", "strict", "Orca"): _published(2.78, "figure 10a", "notes"),
    ("mistral-7b", "openchat_sharegpt4", "relaxed", "Orca"): _published(2.15, "figure 10a", "notes"),
    ("mistral-7b", "arxiv_summarization", "strict", "Orca"): _published(1.82, "figure 10b", "notes"),
    ("mistral-7b", "arxiv_summarization", "relaxed", "Orca"): _published(1.97, "figure 10b", "notes"),
    ("yi-34b", "openchat_sharegpt4", "strict", "vLLM"): _published(3.7, "abstract", "text"),
    ("yi-34b", "openchat_sharegpt4", "strict", "Orca"): _published(4.0, "figure 10a", "notes"),
}
"""Sarathi-Serve over another. Figure 10 writes the larger of its two ratios at a bar; that it is the one over Orca is
told of Yi-34B's first pair (4.0 and 3.7) and taken to hold for the others."""


def system(name: str, model: Model, data: Data, limit: Limit) -> Served:
    """A system of the paper, with what it was given there."""
    policy, most = _SYSTEMS[name]
    return Served(
        name=name,
        longest=data.longest,
        deployment=Deployment(
            model=model.name,
            hardware=model.hardware,
            tensor_parallel=model.accelerators,
            max_running=most,
            max_step_tokens=limit.budget if policy == "stall-free" else data.longest,
            policy=policy,
            prefix_cache=False,
        ),
    )


def workload(data: Data, span_s: float) -> Workload:
    return Workload(arrivals=Poisson(rate=1.0), input=data.input, output=data.output, duration_s=span_s)


def prompt_s(pace: Roofline, tokens: int, budget: int) -> float:
    """How long a prompt takes that is alone, `budget` tokens a step."""
    total = 0.0
    for start in range(0, tokens, budget):
        count = min(budget, tokens - start)
        load = StepLoad().with_chunk(start, count, int(start + count == tokens))
        total += pace.seconds(load)
    return total


def holds(done: Trial, limit: Limit, alone_s: float) -> bool:
    """Within the limit, and begun in time: the median delay is the median TTFT from arrival without what the median
    prompt takes alone, which is less than it takes among others; so the delay is rather too long than too short."""
    delay_s = done.value("ttft_intended_p50") - alone_s
    return done.value("itl_p99") <= limit.tbt_s and delay_s <= DELAY_S


def capacity(
    name: str, model: Model, data: Data, limit: Limit, span_s: float, efficiency: str
) -> tuple[float | None, Trial | None]:
    """The highest rate within the limit, and the run that was the first too many of those near it."""
    served = system(name, model, data, limit)
    budget = served.deployment.max_step_tokens
    alone_s = prompt_s(served.pace(efficiency), data.median_prompt, budget)
    load = workload(data, span_s)
    failed: list[Trial] = []

    def within(rate: float) -> bool:
        done = holding(served, load, efficiency, rate=rate)
        good = holds(done, limit, alone_s)
        if not good:
            failed.append(done)
        return good

    best, _ = highest_rate(within, _START, tolerance=1.08)
    return best, min(failed, key=lambda one: one.rate or 0.0) if failed else None


_CASES = (
    *((MISTRAL, data, limit) for data in DATA for limit in MISTRAL.limits),
    (YI, "openchat_sharegpt4", YI.limits[0]),
)
"""What is searched; Yi-34B's only where the abstract has a number."""


def parts(quick: bool) -> int:
    """Of `reproduce`: searches and curves."""
    searches = 1 if quick else len(_CASES) + len(EFFICIENCIES) - 1
    return len(_SYSTEMS) * (searches + 1)


def reproduce(quick: bool, told: Progress) -> Result:
    """Everything, in minutes; `quick`: one data set and limit, with few requests."""
    span_s = _QUICK_S if quick else _SPAN_S
    rows: list[Row] = []
    cases = _CASES[:1] if quick else _CASES
    for number, (model, data, limit) in enumerate(cases):
        # The range is shown where the abstract has a number: others would take as long again.
        wide = not quick and number == 0
        rows += _rows(model, data, limit, span_s, tuple(EFFICIENCIES) if wide else ("typical",), told)
    return Result(
        paper="sarathi",
        title="Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve",
        source="Agrawal et al., OSDI 2024, arXiv:2403.02310",
        settings=(
            ("machines", "mistral-7b on one A100 80 GB, yi-34b on two (table 1; there PCIe cards, here SXM)"),
            *((name, f"{data.facts} (table 2; lognormal by them)") for name, data in DATA.items()),
            ("limits", "P99 between tokens: mistral-7b 0.1 and 0.5 s, yi-34b 0.2 and 1 s (table 3)"),
            (
                "budgets",
                "512 tokens a step under the strict limit, 2,048 under the relaxed one (section 5.1)",
            ),
            ("sequences", "128 with vLLM and Sarathi-Serve, 16 with Orca (the authors' files)"),
            ("arrivals", f"Poisson, for {span_s:g} s a run; the paper's have 2,048 requests"),
        ),
        missing=(
            (
                "LLaMA2-70B and Falcon-180B were served by pipelines of two stages; a pipeline is not modelled, so "
                "they are left out."
            ),
            (
                "The attention of a chunk reads again what the chunks before it stored; the roofline counts its "
                "arithmetic, and not this reading."
            ),
            "A host that prepares each step costs the roofline's fixed share only; the paper's vLLM paid more for it.",
        ),
        rows=tuple(rows),
        curves=_curves(span_s, told),
        quick=quick,
    )


def _rows(
    model: Model, data: str, limit: Limit, span_s: float, efficiencies: tuple[str, ...], told: Progress
) -> list[Row]:
    found: dict[tuple[str, str], float | None] = {}
    failed: dict[str, Trial | None] = {}
    for efficiency in efficiencies:
        for name in _SYSTEMS:
            told(f"{model.name}, {data}, {limit.name}: {name}, {efficiency}")
            best, trial = capacity(name, model, DATA[data], limit, span_s, efficiency)
            found[name, efficiency] = best
            if efficiency == "typical":
                failed[name] = trial
    group = f"capacity, {model.name}, {data}, {limit.name} ({limit.tbt_s:g} s)"
    rows = []
    for name in _SYSTEMS:
        every = [rate for one in efficiencies if (rate := found[name, one]) is not None]
        rows.append(
            Row(
                group=group, name=name, unit="1/s", published=None, simulated=found[name, "typical"],
                least=min(every, default=None), most=max(every, default=None),
            )
        )  # fmt: skip
    for other in ("vLLM", "Orca"):
        published = _RATIOS.get((model.name, data, limit.name, other))
        every = [
            found["Sarathi-Serve", one] / rate  # type: ignore[operator]
            for one in efficiencies
            if (rate := found[other, one]) and found["Sarathi-Serve", one]
        ]
        ours, theirs = found["Sarathi-Serve", "typical"], found[other, "typical"]
        row = Row(
            group=group,
            name=f"Sarathi-Serve over {other}",
            unit="ratio",
            published=published,
            simulated=ours / theirs if ours and theirs else None,
            least=min(every, default=None),
            most=max(every, default=None),
        )
        if not row.agrees or (published is not None and row.simulated is None):
            row = msgspec.structs.replace(row, why=_why(other, found, failed, limit, model, DATA[data]))
        rows.append(row)
    return rows


def _why(
    other: str,
    found: dict[tuple[str, str], float | None],
    failed: dict[str, Trial | None],
    limit: Limit,
    model: Model,
    data: Data,
) -> str:
    """What ended each of the two."""
    parts = []
    for name in ("Sarathi-Serve", other):
        rate, trial = found[name, "typical"], failed[name]
        parts.append(f"{name} holds {'no rate' if rate is None else f'{rate:.2f} requests/s'}")
        if trial is not None:
            gap_ms = trial.value("itl_p99") * 1e3
            which = "the limit" if gap_ms > limit.tbt_s * 1e3 else "the delay"
            parts[-1] += (
                f" and is ended by {which} (at {trial.rate:.2f}: P99 {gap_ms:.0f} ms, median TTFT "
                f"{trial.value('ttft_intended_p50'):.1f} s)"
            )
    served = system(other, model, data, limit)
    whole_ms = prompt_s(served.pace(), data.median_prompt, data.longest) * 1e3
    return (
        "; ".join(parts)
        + f". A median prompt in one step takes {whole_ms:.0f} ms here, and the limit is {limit.tbt_s * 1e3:.0f} ms."
    )


def _curves(span_s: float, told: Progress) -> tuple[Curve, ...]:
    data, limit = DATA["openchat_sharegpt4"], MISTRAL.limits[0]
    rates = (1.0, 2.0, 3.0, 4.0, 6.0)
    curves = []
    for name in _SYSTEMS:
        told(f"curve of {name}")
        served = system(name, MISTRAL, data, limit)
        done = [holding(served, workload(data, span_s), rate=rate) for rate in rates]
        curves.append(
            Curve(
                figure="P99 between tokens, Mistral-7B, openchat_sharegpt4, budget 512",
                name=name,
                x_label="requests/s",
                y_label="P99 between tokens, s",
                x=rates,
                y=tuple(one.value("itl_p99") for one in done),
                bound=limit.tbt_s,
            )
        )
    return tuple(curves)
