"""What `octavo plan` does once its options are read. Knows searches and a terminal, no option."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import octavo
from octavo.bench.shown import label_of, show
from octavo.bench.slo import Slo
from octavo.cli.processes import processes
from octavo.cli.results import NOT_MET, changed_workload, check_outputs
from octavo.errors import InvalidParameter
from octavo.planning.comparison import Comparison, compare
from octavo.planning.hosted import Turn
from octavo.planning.journal import Journal
from octavo.planning.owned import Owned
from octavo.planning.plan import Plan, told
from octavo.planning.plan_page import plan_page
from octavo.planning.prices import HostedModel, Prices
from octavo.planning.search import Found, Search
from octavo.planning.sheet import Sheet
from octavo.planning.space import Space
from octavo.planning.traffic import DAY_S, Traffic
from octavo.planning.trying import Failing
from octavo.planning.words import (
    SHOWN,
    advice,
    cost_head,
    cost_of,
    failing_words,
    headline,
    margins_of,
    precision,
)
from octavo.scheduling.policies import POLICIES
from octavo.simulation.catalogue import hardware, model, named
from octavo.simulation.guessing import Guessing
from octavo.workload.generate import requests_of
from octavo.workload.spec import Workload
from octavo.workload.summary import Summary, summarize

__all__ = ["Asked", "make_plan", "progress", "summary_of", "tell"]

_LOOKED_AT = 2_000
"""Requests of a workload, for its mean lengths and what its prompts share."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The command line."""

    space: Space
    workload: str
    slo: str
    rate: float | None
    failing: Failing | None
    hosted: list[str] | None
    prices: Path | None
    seed: int | None
    seeds: int
    requests: int
    workers: int | None
    journal: Path | None
    html: Path | None
    json: bool


def make_plan(asked: Asked) -> int:
    """Search, print and write; return the exit code: 1 where nothing meets the target. Raises ClientError."""
    slo = Slo.parse(asked.slo)
    workload = changed_workload(asked.workload, seed=asked.seed, rate=asked.rate)
    _check(asked.space, asked.failing)
    prices = Prices(asked.prices)
    sellers = [prices.hosted_model(text) for text in asked.hosted or []]
    check_outputs(None, asked.html)
    summary = summary_of(workload)
    journal = Journal(asked.journal, octavo.__version__)
    try:
        found = _searched(asked, workload, summary, slo, prices, journal)
    finally:
        journal.close()
    turns = summary.turns_mean if workload.rate is not None else 1.0
    plan = told(
        found,
        slo,
        model=asked.space.model,
        workload=asked.workload,
        rate=workload.rate,
        request_rate=None if workload.rate is None else workload.rate * turns,
        seed=workload.seed,
        calibration="uncalibrated, from rooflines",
    )
    if asked.failing is not None:
        plan.failing = failing_words(found, asked.failing)
    return tell(plan, _against(plan, sellers, summary), asked.html, json=asked.json)


def tell(plan: Plan, against: Comparison | None, html: Path | None, *, json: bool) -> int:
    """Print it, or write it as JSON; return the exit code."""
    if html is not None:
        html.write_text(plan_page(plan, against).html(), encoding="utf-8")
    if json:
        whole = {**msgspec.to_builtins(plan), "hosted": msgspec.to_builtins(against)}
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(whole), indent=1).decode() + "\n")
    else:
        _print(plan, against, Console(highlight=False, emoji=False))
    return 0 if plan.best is not None else NOT_MET


def _check(space: Space, failing: Failing | None) -> None:
    """Names, before anything long begins."""
    model(space.model)
    if space.draft_model is not None:
        model(space.draft_model)
        if space.speculations == ("off",):
            raise InvalidParameter(
                f"--draft-model is {space.draft_model}, and --speculation off; give its acceptance too, such as "
                "off,0.7."
            )
    for guesses in space.speculations:
        Guessing.parse(guesses, None)
    if failing is not None and failing.mtbf_s <= 0:
        raise InvalidParameter(
            "--mtbf is 0, and a mean time between failures is more; leave it out for none."
        )
    for name in space.hardware:
        hardware(name)
    for policy in space.policies:
        named(policy, {str(name): one for name, one in POLICIES.items()}, "policy")
    for share in space.utilizations:
        if share > 1:
            raise InvalidParameter(f"--memory-utilization is {share:g}; shares are above 0 and at most 1.")


def summary_of(workload: Workload) -> Summary:
    few = workload
    if workload.trace is None:
        count = min(workload.requests or _LOOKED_AT, _LOOKED_AT)
        few = msgspec.structs.replace(workload, requests=max(count, 200), duration_s=None)
    return summarize(requests_of(few))


def _searched(
    asked: Asked, workload: Workload, summary: Summary, slo: Slo, prices: Prices, journal: Journal
) -> Found:
    with progress() as say, processes(asked.workers) as (executor, workers):
        search = Search(
            asked.space,
            workload,
            summary,
            slo,
            prices,
            executor,
            journal,
            seeds=asked.seeds,
            requests=asked.requests,
            workers=workers,
            failing=asked.failing,
            told=say,
        )
        return search.run()


@contextmanager
def progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """A bar on the terminal, if standard error is one."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task("looking at machines", total=None)
        yield lambda words, done, all_: bar.update(task, description=words, completed=done, total=all_)


def _against(plan: Plan, sellers: list[tuple[str, HostedModel]], summary: Summary) -> Comparison | None:
    """The plan against sellers, as if the rate were asked for around the clock."""
    month = None if plan.best is None else plan.best.per_month
    if not sellers or month is None or plan.request_rate is None or summary.input is None:
        return None
    turn = Turn(input=summary.input.mean, output=summary.output.mean)
    traffic = Traffic(turns_per_day=plan.request_rate * DAY_S, turn=turn)
    turns = plan.request_rate / plan.rate if plan.rate else 1.0
    able = max((one.rate * turns for one in plan.curve if one.met), default=plan.request_rate)
    own = Owned(per_month=month)
    return compare(traffic, sellers, own, Sheet(), capacity=able)


def _print(plan: Plan, against: Comparison | None, console: Console) -> None:
    for line in headline(plan):
        console.print(line, markup=False, style="bold" if plan.best is not None else "bold red")
    console.print()
    best = plan.best
    if best is not None:
        console.print(best.serve, markup=False, soft_wrap=True)
        console.print()
        for name, words in margins_of(best):
            console.print(f"  {label_of(name)}: {words}", markup=False)
        for line in advice(plan):
            console.print(f"· {line}", markup=False)
        console.print()
    if plan.options:
        console.print(_options(plan))
    if plan.sensitivities:
        console.print()
        console.print(_knobs(plan))
    if against is not None:
        console.print()
        console.print(_sellers(plan, against))
    if plan.left_out:
        console.print()
        for reason, names in plan.left_out.items():
            some = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
            console.print(f"not simulated: {some}: {reason}", markup=False)
    again = f", {plan.taken_over:,} outcomes from the journal" if plan.taken_over else ""
    console.print(f"\n{plan.simulations:,} simulations{again}; step times {plan.calibration}.")


def _options(plan: Plan) -> Table:
    bits = "threads" if plan.owned else "bits"
    shown = (label_of(name) for name in SHOWN)
    table = Table("", "machines", bits, cost_head(plan), *shown, "at once", box=None, pad_edge=False)
    for one in plan.options:
        table.add_row(
            one.label if one.met else "misses it",
            one.machines,
            precision(one),
            cost_of(one),
            *(show(name, one.values.get(name)) for name in SHOWN),
            f"{one.at_once:,}",
        )
    return table


def _knobs(plan: Plan) -> Table:
    table = Table(
        "one knob changed", "", *(label_of(name) for name in SHOWN), "meets it", box=None, pad_edge=False
    )
    for one in plan.sensitivities:
        shown = (show(name, one.values.get(name)) for name in SHOWN)
        table.add_row(one.knob, one.value, *shown, "yes" if one.met else "no")
    return table


def _sellers(plan: Plan, made: Comparison) -> Table:
    table = Table("seller", f"{plan.currency} a month", "this plan is cheaper from", box=None, pad_edge=False)
    for one in made.hosted:
        from_ = one.crossover_turns_per_day
        table.add_row(
            one.name, f"{one.per_month:,.0f}", "never" if from_ is None else f"{from_:,.0f} turns a day"
        )
    return table
