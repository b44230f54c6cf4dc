"""What a plan says in sentences, for terminal and page alike. Knows plans, no layout."""

from __future__ import annotations

from octavo.bench.shown import show
from octavo.planning.plan import Option, Plan
from octavo.planning.search import Found
from octavo.planning.trying import Failing

__all__ = [
    "BINDS",
    "SHOWN",
    "advice",
    "cost_head",
    "cost_of",
    "failing_words",
    "headline",
    "margins_of",
    "precision",
]

SHOWN = ("ttft_p50", "ttft_p99", "itl_p99")
"""Of an option's numbers, in tables."""

BINDS = {
    "memory": "the memory for K and V",
    "queue": "the places for sequences (--max-running)",
    "compute": "arithmetic",
    "bandwidth": "memory bandwidth",
    "nothing": "nothing yet",
}


def headline(plan: Plan) -> list[str]:
    """What came of the search."""
    asked = f"{plan.model}, {plan.workload}"
    if plan.rate is not None:
        asked += f" at {plan.rate:g} sessions a second"
    best = plan.best
    if best is None:
        if plan.infeasible_alone:
            return [
                f"{asked}: {plan.slo} is infeasible even for one request at a time, on every machine considered."
            ]
        return [f"{asked}: nothing that was considered meets {plan.slo}."]
    if best.per_hour is None or best.per_month is None:
        return [f"{asked}: the least of this machine that meets {plan.slo} is {best.machines}."]
    cost = f"{best.per_hour:,.2f} {plan.currency} an hour, {best.per_month:,.0f} a month of 30 days"
    with_ = f"{best.machines} with {best.weight_bits:g}-bit weights"
    return [f"{asked}: the cheapest that meets {plan.slo} is {with_}, {cost}."]


def advice(plan: Plan) -> list[str]:
    """What binds, what one step cheaper would miss, and how sure all of it is."""
    lines = []
    if plan.binds is not None:
        lines.append(f"What binds is {BINDS[plan.binds.kind]}: {plan.binds.why}.")
    if plan.cheaper is not None:
        cheaper = plan.cheaper
        says = "would meet it too in these runs" if cheaper.met else f"misses it: {cheaper.why}"
        more = (
            f" ({BINDS[plan.cheaper_binds.kind]} binds)"
            if plan.cheaper_binds is not None and not cheaper.met
            else ""
        )
        lines.append(f"One step cheaper, {cheaper.machines}{_at_a_month(cheaper, plan)}, {says}{more}.")
        if not cheaper.met and not plan.cheaper_sure:
            lines.append("With steps that take less than was fitted that one meets it too: it may be enough.")
    elif plan.best is not None:
        lines.append("Nothing cheaper was considered that could be simulated.")
    if plan.ranges:
        told = {True: "still meets it", False: "does not meet it"}
        lines.append(
            f"Step times are {plan.calibration}: with kernels that reach little of the machine's peaks the plan "
            f"{told[plan.ranges['low']]}, with those that reach most it {told[plan.ranges['high']]}; --kernels low "
            "plans for the former."
        )
    if plan.error is not None:
        lines.append(
            f"Step times are {plan.calibration}, and may be off by {100 * plan.error:.0f} %: every figure is given "
            "with steps that take so much less and more, and the plan holds with the latter."
        )
    if plan.critical:
        lines.append(f"The critical batch: {plan.critical}.")
    if plan.failing:
        lines.append(plan.failing)
    if plan.best is not None and plan.best.weight_bits is not None and plan.best.weight_bits < 16:
        lines.append(
            "Fewer bits change the answers, and no speed says by how much: --weight-bits 16 leaves them out."
        )
    return lines


def failing_words(found: Found, failing: Failing) -> str:
    """What failures of replicas did to the best."""
    best = found.best
    if best is None:
        return ""
    replicas, outcomes = best.choice.replicas, best.trial.outcomes
    some_dead = 1.0 - (1.0 - failing.share) ** replicas
    died = sum(one.failures for one in outcomes)
    said = (
        f"A replica dies after {failing.mtbf_s:g} s in the mean and is back {failing.repair_s:g} s later, so "
        f"{100 * some_dead:.2g} % of the time one is missing: {died} died in the {len(outcomes)} runs that "
        "confirm the plan"
    )
    if died:
        return f"{said}, and it held."
    return f"{said}: failures are rarer than runs are long, and percentiles do not show them."


def cost_head(plan: Plan) -> str:
    """Of a column."""
    return "MiB for K and V" if plan.owned else f"{plan.currency} a month"


def cost_of(option: Option) -> str:
    """Its cell in that column."""
    if option.kv_memory_bytes is not None:
        return f"{option.kv_memory_bytes / (1 << 20):,.0f}"
    return "–" if option.per_month is None else f"{option.per_month:,.0f}"


def precision(option: Option) -> str:
    """Bits of a weight; of a machine that was measured, its threads."""
    if option.weight_bits is not None:
        return f"{option.weight_bits:g}"
    return "–" if option.threads is None else f"{option.threads}"


def _at_a_month(option: Option, plan: Plan) -> str:
    return "" if option.per_month is None else f" at {option.per_month:,.0f} {plan.currency} a month"


def margins_of(option: Option) -> list[tuple[str, str]]:
    """By name: the value, and how far it is from its bound."""
    found = []
    for name, room in option.margins.items():
        value = show(name, option.values.get(name))
        told = (
            "–"
            if room is None
            else f"{100 * room:.0f} % of the bound left"
            if room >= 0
            else f"{-100 * room:.0f} % beyond"
        )
        if name in option.shorter and name in option.longer:
            value += f" ({show(name, option.shorter[name])} to {show(name, option.longer[name])})"
        found.append((name, f"{value}, {told}"))
    return found
