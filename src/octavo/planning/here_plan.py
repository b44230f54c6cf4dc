"""A plan for a machine that was measured, as it is told. Knows no page."""

from __future__ import annotations

from typing import Any

from octavo.bench.slo import Slo
from octavo.bench.trial import Trial
from octavo.planning.binding import binding
from octavo.planning.bounds import Mean
from octavo.planning.here import HereFound, Settled
from octavo.planning.plan import Option, Plan, Point, Row, label, margins
from octavo.planning.trying import Tried

__all__ = ["told_here"]


def told_here(found: HereFound, slo: Slo, mean: Mean, **known: Any) -> Plan:
    """`mean`: of the workload's requests. `known`: the plan's own fields that a search does not know."""
    plan = Plan(slo=slo.text, **known)
    met = [one for one in found.others if one.met]
    if found.best is not None:
        met[0] = found.best
    plan.options = [_option(one, slo, mean) for one in met]
    label(plan.options)
    plan.options += [_option(one, slo, mean) for one in found.others if not one.met]
    best = found.best
    if best is None:
        return plan
    plan.best = plan.options[0]
    plan.error = best.error
    plan.binds = binding(best.choice, _shown(best).outcomes[0])
    plan.critical = best.choice.critical_sum
    if found.cheaper is not None:
        plan.cheaper = _option(found.cheaper, slo, mean)
        plan.cheaper_binds = binding(found.cheaper.choice, found.cheaper.slow.outcomes[0])
        plan.cheaper_sure = found.cheaper.sure
    plan.sensitivities = [
        Row(knob=knob, value=value, met=one.met, values=_means(_shown(one)))
        for knob, value, one in found.sensitivities
    ]
    plan.curve = [
        Point(rate=rate, met=Trial.of(slo, rate, [tried]).decision == "met", values=tried.values)
        for rate, tried in found.curve
    ]
    return plan


def _shown(one: Settled) -> Trial[Tried]:
    """As fitted, where it was simulated so; else with steps that take more."""
    return one.slow if one.typical is None else one.typical


def _option(one: Settled, slo: Slo, mean: Mean) -> Option:
    choice = one.choice
    limits = choice.settings.limits
    fit = int(limits.num_blocks * limits.block_size // (mean.prompt + mean.output))
    unfit = next((tried.unfit for tried in one.slow.outcomes if tried.unfit is not None), None)
    return Option(
        label="",
        machines=choice.machines,
        knobs=choice.knobs,
        serve=choice.serve_command(),
        per_hour=None,
        per_month=None,
        accelerators=1,
        weight_bits=None,
        at_once=min(fit, limits.max_slots),
        met=one.met,
        values=_means(_shown(one)),
        margins=margins(one.slow, slo),
        why=unfit or (one.slow.why if one.slow.outcomes else "nothing could be run"),
        threads=choice.threads,
        kv_memory_bytes=choice.kv_memory_bytes,
        shorter={} if one.fast is None else _means(one.fast),
        longer={} if one.fast is None else _means(one.slow),
    )


def _means(trial: Trial[Tried]) -> dict[str, float | None]:
    """Over the runs."""
    names = dict.fromkeys(name for tried in trial.outcomes for name in tried.values)
    found: dict[str, float | None] = {}
    for name in names:
        values = [value for tried in trial.outcomes if (value := tried.value(name)) is not None]
        found[name] = sum(values) / len(values) if values else None
    return found
