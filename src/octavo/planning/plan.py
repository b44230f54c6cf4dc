"""A plan as it is told: the cheapest way, what else there is, what binds, how sure it is. Knows no page."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from octavo.bench.slo import Slo
from octavo.bench.trial import Trial
from octavo.planning.binding import Binding, binding
from octavo.planning.search import Candidate, Found
from octavo.planning.trying import Tried

__all__ = ["Option", "Plan", "Point", "Row", "label", "margins", "told"]

HOURS_A_MONTH = 24 * 30


class Option(msgspec.Struct, kw_only=True):
    """One way to serve, and what came of it in simulation."""

    label: str
    """Why it is shown: the cheapest, the next, the lowest TTFT, the most at once."""
    machines: str
    knobs: str
    serve: str
    per_hour: float | None
    """None on a machine that is there already."""
    per_month: float | None
    accelerators: int
    weight_bits: float | None
    at_once: int
    """Requests whose K and V fit beside each other, in all replicas."""
    met: bool
    values: dict[str, float | None]
    margins: dict[str, float | None]
    """By the SLO's parts: room left in parts of the bound."""
    why: str
    """Of the SLO's parts: what is nearest to its bound, or is not met."""
    threads: int | None = None
    kv_memory_bytes: int | None = None
    """What it takes of a machine that is there already."""
    shorter: dict[str, float | None] = {}
    longer: dict[str, float | None] = {}
    """The values with steps that take less and more than was fitted, by the calibration's error. The margins are those
    of the latter."""


class Row(msgspec.Struct, kw_only=True):
    """What a knob does by itself."""

    knob: str
    value: str
    met: bool
    values: dict[str, float | None]


class Point(msgspec.Struct, kw_only=True):
    """Of the capacity curve."""

    rate: float
    """Sessions a second."""
    met: bool
    values: dict[str, float | None]


class Plan(msgspec.Struct, kw_only=True):
    """Everything that is told."""

    model: str
    workload: str
    slo: str
    rate: float | None
    """Sessions a second."""
    request_rate: float | None
    seed: int
    currency: str = "USD"
    calibration: str
    """How the machines' step times are known."""
    error: float | None = None
    """So far off, as a share, step times that were fitted may be."""
    critical: str = ""
    """How the best's critical batch is reckoned."""
    failing: str = ""
    """What failures of replicas do to it."""
    best: Option | None = None
    options: list[Option] = []
    """All that meet the SLO, the cheapest first, and then what does not."""
    binds: Binding | None = None
    cheaper: Option | None = None
    cheaper_binds: Binding | None = None
    cheaper_sure: bool = True
    """False: it misses the SLO with steps that take more than was fitted, and meets it with those that take less."""
    sensitivities: list[Row] = []
    curve: list[Point] = []
    ranges: dict[str, bool] = {}
    """With kernels that reach little (`low`) and most (`high`) of the peaks: whether the plan still meets the SLO."""
    left_out: dict[str, list[str]] = {}
    """By the reason: machines that were not simulated."""
    simulations: int = 0
    taken_over: int = 0

    @property
    def owned(self) -> bool:
        """The machine is there already, and costs nothing more."""
        return any(one.kv_memory_bytes is not None for one in self.options)

    @property
    def infeasible_alone(self) -> bool:
        """No machine meets the SLO even for one request at a time."""
        return (
            self.best is None
            and bool(self.left_out or self.options)
            and all("one request at a time" in reason for reason in self._reasons())
        )

    def _reasons(self) -> list[str]:
        return [*self.left_out, *(one.why for one in self.options if not one.met)]


def told(found: Found, slo: Slo, **known: Any) -> Plan:
    """`known`: the plan's own fields that a search does not know."""
    plan = Plan(slo=slo.text, simulations=found.simulations, taken_over=found.taken_over, **known)
    met = found.candidates
    plan.options = [_option(one, slo) for one in met]
    label(plan.options)
    plan.options += [_option(one, slo) for one in found.unmet]
    simulated = {one.base.name for one in [*met, *found.unmet]}
    for base in found.considered:
        if base.name not in simulated:
            reason = base.why_not or "Costs more than twice the best, at the least."
            plan.left_out.setdefault(reason, []).append(base.name)
    if found.best is None:
        return plan
    plan.best = plan.options[0]
    plan.binds = binding(found.best.choice, found.best.trial.outcomes[0])
    plan.critical = found.best.choice.critical_sum
    if found.cheaper is not None:
        plan.cheaper = _option(found.cheaper, slo)
        plan.cheaper_binds = binding(found.cheaper.choice, found.cheaper.trial.outcomes[0])
    plan.sensitivities = [
        Row(knob=one.knob, value=one.value, met=one.met, values=one.tried.values)
        for one in found.sensitivities
    ]
    plan.curve = [
        Point(rate=rate, met=Trial.of(slo, rate, [tried]).decision == "met", values=tried.values)
        for rate, tried in found.curve
    ]
    plan.ranges = {name: trial.decision == "met" for name, trial in found.ranges.items()}
    return plan


def label(options: list[Option]) -> None:
    """The cheapest, the next one, and who is best in what else is asked for."""
    labels: list[list[str]] = [[] for _ in options]
    if options:
        labels[0].append("cheapest")
        places = range(len(options))
        labels[min(places, key=lambda at: options[at].values.get("ttft_p99") or math.inf)].append(
            "lowest TTFT"
        )
        labels[max(places, key=lambda at: (options[at].at_once, -at))].append("most at once")
    if len(options) > 1:
        labels[1].insert(0, "next cheapest")
    for option, words in zip(options, labels, strict=True):
        option.label = ", ".join(words)


def _option(one: Candidate, slo: Slo) -> Option:
    names = dict.fromkeys([*(name for tried in one.trial.outcomes for name in tried.values)])
    choice = one.choice
    why = one.trial.why if one.trial.outcomes else "nothing could be run"
    unfit = next((tried.unfit for tried in one.trial.outcomes if tried.unfit is not None), None)
    if unfit is not None:
        why = unfit
    if one.alone:
        why = f"Infeasible even for one request at a time, with the best kernels: {why}"
    return Option(
        label="",
        machines=choice.machines,
        knobs=choice.knobs,
        serve=choice.serve_command(),
        per_hour=one.per_hour,
        per_month=one.per_hour * HOURS_A_MONTH,
        accelerators=choice.accelerators,
        weight_bits=choice.deployment.weight_bits,
        at_once=one.base.at_once * choice.replicas,
        met=one.met,
        values={name: one.value(name) for name in names},
        margins=margins(one.trial, slo),
        why=why,
    )


def margins(trial: Trial[Tried], slo: Slo) -> dict[str, float | None]:
    """By the SLO's parts: room left in parts of the bound, on the mean of the runs."""
    found: dict[str, float | None] = {}
    for part in slo.parts:
        values = [value for tried in trial.outcomes if (value := tried.late(part.name)) is not None]
        mean = sum(values) / len(values) if values else math.nan
        if not math.isfinite(mean) or part.bound == 0.0:
            found[part.name] = None
            continue
        room = (part.bound - mean) / part.bound
        found[part.name] = room if part.upper else -room
    return found
