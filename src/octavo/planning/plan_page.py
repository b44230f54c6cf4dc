"""A plan as one page: the three forces against each other, knobs, capacity, crossover. Knows plans and charts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from octavo.bench.cost import figure
from octavo.bench.shown import axis_of, label_of, show
from octavo.charts.figure import Axis, Bound, Figure, Series
from octavo.charts.page import Code, Facts, Note, Page, Part, Section, Table, Text
from octavo.planning.comparison import Comparison
from octavo.planning.plan import Option, Plan, Point
from octavo.planning.words import SHOWN, advice, cost_head, cost_of, headline, margins_of, precision

__all__ = ["plan_page"]

_AT_ONCE = Axis(label="requests at once", log=True)
_DAY_S = 86_400
_POINTS = 60


def plan_page(plan: Plan, hosted: Comparison | None = None) -> Page:
    """`hosted`: the plan against sellers."""
    sections = [
        Section(title="The plan", parts=_best(plan)),
        Section(title="First token, cost, requests at once", parts=_forces(plan)),
        Section(title="Each knob by itself", parts=_knobs(plan)),
        Section(title="What it can do", parts=_capacity(plan)),
        Section(title="Against hosted models", parts=_hosted(plan, hosted)),
        Section(title="What was left out", parts=_left_out(plan)),
    ]
    return Page(
        title=f"A plan for {plan.model}",
        about=f"{plan.workload}, {plan.slo}",
        top=[Note(headline(plan), "good" if plan.best is not None else "bad")],
        sections=[one for one in sections if one.parts],
        foot="Made by octavo plan; charts by uPlot (MIT). Equal questions give equal answers.",
    )


def _best(plan: Plan) -> list[Part]:
    best = plan.best
    if best is None:
        return []
    facts = [
        ("Machines", best.machines, ""),
        ("Cost", f"{cost_of(best)} {cost_head(plan)}", "" if plan.owned else "of 30 days"),
        *((label_of(name), show(name, best.values.get(name)), "") for name in SHOWN),
        ("At once", f"{best.at_once:,}", "requests that fit"),
    ]
    return [
        Facts(facts),
        Code(best.serve),
        Text(f"Settings: {best.knobs}."),
        *(Text(line) for line in advice(plan)),
        Table(
            caption="Room to the bounds",
            head=["bound", "room"],
            rows=[[label_of(name), room] for name, room in margins_of(best)],
        ),
    ]


def _forces(plan: Plan) -> list[Part]:
    """Pareto plots of each two of the three."""
    if not plan.options:
        return []
    cost = Axis(label=cost_head(plan), log=True)
    pairs = [
        ("Cost and first token", cost, "cost", axis_of("ttft_p99", log=True), "ttft_p99"),
        ("Cost and requests at once", cost, "cost", _AT_ONCE, "at_once"),
        ("Requests at once and first token", _AT_ONCE, "at_once", axis_of("ttft_p99", log=True), "ttft_p99"),
    ]
    figures: list[Part] = [
        Figure(
            title=title,
            x=x,
            y=y,
            series=_series(plan.options, x_name, y_name),
            note="each point is one way to serve",
        )
        for title, x, x_name, y, y_name in pairs
    ]
    return [*figures, _table(plan)]


def _series(options: Sequence[Option], x_name: str, y_name: str) -> list[Series]:
    found = []
    for name, met, colour in (("meets the target", True, 3), ("misses it", False, 2)):
        points = [
            (x, y, f"{one.machines}, {precision(one)} {'threads' if one.weight_bits is None else 'bits'}")
            for one in options
            if one.met is met and (x := _value(one, x_name)) and (y := _value(one, y_name))
        ]
        if points:
            across, up, labels = zip(*points, strict=True)
            found.append(Series(name=name, kind="points", x=across, y=up, labels=labels, colour=colour))
    return found or [Series(name="nothing", kind="points", x=(), y=())]


def _value(one: Option, name: str) -> float | None:
    if name == "at_once":
        return float(one.at_once)
    if name == "cost":
        return one.per_month if one.kv_memory_bytes is None else one.kv_memory_bytes / (1 << 20)
    return one.values.get(name)


def _table(plan: Plan) -> Table:
    rows = [
        [
            one.machines,
            one.label if one.met else one.why,
            precision(one),
            cost_of(one),
            *(show(name, one.values.get(name)) for name in SHOWN),
            f"{one.at_once:,}",
        ]
        for one in plan.options
    ]
    return Table(
        caption="Every way that was simulated",
        head=[
            "machines",
            "threads" if plan.owned else "bits",
            cost_head(plan),
            *(label_of(name) for name in SHOWN),
            "at once",
            "",
        ],
        rows=rows,
        words=(0, 1),
        bad=[place for place, one in enumerate(plan.options) if not one.met],
    )


def _knobs(plan: Plan) -> list[Part]:
    if not plan.sensitivities or plan.best is None:
        return []
    names = (*SHOWN, "kv_use_max", "busy_share")
    first = ["the plan", "", *(show(name, plan.best.values.get(name)) for name in names), "yes"]
    rows = [
        [
            one.knob,
            one.value,
            *(show(name, one.values.get(name)) for name in names),
            "yes" if one.met else "no",
        ]
        for one in plan.sensitivities
    ]
    bad = [place + 1 for place, one in enumerate(plan.sensitivities) if not one.met]
    head = ["knob", "value", *(label_of(name) for name in names), "meets it"]
    return [
        Table(
            caption="One knob changed, all else as in the plan",
            head=head,
            rows=[first, *rows],
            words=(0, 1),
            bad=bad,
        )
    ]


def _capacity(plan: Plan) -> list[Part]:
    points = [one for one in plan.curve if one.values]
    if len(points) < 2:
        return []
    parts = dict.fromkeys(piece.split("<")[0].strip() for piece in plan.slo.split(",") if "<" in piece)
    names = [name for name in parts if name in points[0].values] or ["ttft_p99"]
    here = [Bound(at=plan.rate, label="asked", axis="x")] if plan.rate is not None else []
    return [
        *(_curve(name, points, here) for name in names),
        _curve("output_rate", points, here),
        Table(
            caption="The plan at other rates",
            head=["sessions a second", *(label_of(name) for name in (*SHOWN, "output_rate")), "meets it"],
            rows=[
                [
                    figure(one.rate),
                    *(show(name, one.values.get(name)) for name in (*SHOWN, "output_rate")),
                    "yes" if one.met else "no",
                ]
                for one in points
            ],
            bad=[place for place, one in enumerate(points) if not one.met],
        ),
    ]


def _curve(name: str, points: Sequence[Point], bounds: Sequence[Bound]) -> Figure:
    return Figure(
        title=f"{label_of(name)} by rate",
        x=Axis(label="sessions a second"),
        y=axis_of(name, label=label_of(name)),
        series=[
            Series(
                name=label_of(name),
                x=[one.rate for one in points],
                y=[one.values.get(name) for one in points],
            )
        ],
        bounds=bounds,
    )


def _hosted(plan: Plan, made: Comparison | None) -> list[Part]:
    if made is None or made.own is None or plan.best is None or plan.request_rate is None:
        return []
    month = plan.best.per_month
    if month is None:
        return []
    middle = plan.request_rate * _DAY_S
    turns = [middle * 10 ** (-2 + 3 * place / _POINTS) for place in range(_POINTS + 1)]
    each = made.next_machine_turns_per_day or math.inf
    own = [month * max(math.ceil(one / each - 1e-9), 1) for one in turns]
    series = [Series(name="this plan, so often as is needed", x=turns, y=own, kind="step")]
    series += [
        Series(name=one.name, x=turns, y=[one.per_turn * 30 * each_day for each_day in turns])
        for one in made.hosted
    ]
    rows = [
        [
            one.name,
            f"{one.per_month:,.0f}",
            figure(one.per_million_blended),
            "never" if one.crossover_turns_per_day is None else f"{one.crossover_turns_per_day:,.0f}",
        ]
        for one in made.hosted
    ]
    return [
        Figure(
            title="A month by turns a day",
            x=Axis(label="turns a day", log=True),
            y=Axis(label=f"{plan.currency} a month", log=True),
            series=series,
            bounds=[Bound(at=middle, label="asked", axis="x")],
        ),
        Table(
            caption="Sellers, with the rate asked for around the clock",
            head=[
                "seller",
                f"{plan.currency} a month",
                "a million tokens",
                "this plan is cheaper from turns a day",
            ],
            rows=rows,
        ),
    ]


def _left_out(plan: Plan) -> list[Part]:
    if not plan.left_out:
        return []
    rows = [[reason, ", ".join(names)] for reason, names in plan.left_out.items()]
    return [Table(caption="Not simulated", head=["why", "machines"], rows=rows, words=(0, 1), folded=True)]
