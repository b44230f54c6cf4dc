"""What a plan says in sentences, for terminal and page alike. Knows plans, no layout."""

from __future__ import annotations

from octavo.bench.shown import show
from octavo.planning.plan import Option, Plan

__all__ = ["SHOWN", "advice", "headline", "margins_of"]

SHOWN = ("ttft_p50", "ttft_p99", "itl_p99")
"""Of an option's numbers, in tables."""

_BINDS = {
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
    cost = f"{best.per_hour:,.2f} {plan.currency} an hour, {best.per_month:,.0f} a month of 30 days"
    with_ = f"{best.machines} with {best.weight_bits:g}-bit weights"
    return [f"{asked}: the cheapest that meets {plan.slo} is {with_}, {cost}."]


def advice(plan: Plan) -> list[str]:
    """What binds, what one step cheaper would miss, and how sure all of it is."""
    lines = []
    if plan.binds is not None:
        lines.append(f"What binds is {_BINDS[plan.binds.kind]}: {plan.binds.why}.")
    if plan.cheaper is not None:
        cheaper = plan.cheaper
        says = "would meet it too in these runs" if cheaper.met else f"misses it: {cheaper.why}"
        more = (
            f" ({_BINDS[plan.cheaper_binds.kind]} binds)"
            if plan.cheaper_binds is not None and not cheaper.met
            else ""
        )
        lines.append(
            f"One step cheaper, {cheaper.machines} at {cheaper.per_month:,.0f} {plan.currency} a month, {says}{more}."
        )
    elif plan.best is not None:
        lines.append("Nothing cheaper was considered that could be simulated.")
    if plan.ranges:
        told = {True: "still meets it", False: "does not meet it"}
        lines.append(
            f"Step times are {plan.calibration}: with kernels that reach little of the machine's peaks the plan "
            f"{told[plan.ranges['low']]}, with those that reach most it {told[plan.ranges['high']]}; --kernels low "
            "plans for the former."
        )
    if plan.best is not None and plan.best.weight_bits < 16:
        lines.append(
            "Fewer bits change the answers, and no speed says by how much: --weight-bits 16 leaves them out."
        )
    return lines


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
        found.append((name, f"{value}, {told}"))
    return found
