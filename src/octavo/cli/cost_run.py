"""What `octavo cost` does once its options are read. Knows sums and a terminal, no option."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from octavo.bench.cost import figure
from octavo.cli.bench_options import numbers
from octavo.cli.options import parse_size
from octavo.errors import InvalidParameter
from octavo.planning.comparison import Comparison, compare
from octavo.planning.hosted import Turn, cost_per_turn
from octavo.planning.owned import Owned, Power
from octavo.planning.prices import HostedModel, Prices
from octavo.planning.sheet import Sheet
from octavo.planning.team import Convention, Load, Room, e2e_s, load, room
from octavo.planning.traffic import Traffic
from octavo.simulation.catalogue import hardware, model

__all__ = ["Asked", "AskedOfTeam", "compare_costs", "describe_team", "in_options", "list_prices"]

_FIELDS = {
    "turns_per_day": "--turns-per-day",
    "input": "--input",
    "output": "--output",
    "cached": "--cached",
    "cache_write": "--cache-write",
    "days": "--days",
    "hours": "--hours",
    "peak": "--peak",
    "years": "--years",
    "residual": "--residual",
    "purchase": "--purchase",
    "pue": "--pue",
    "per_month": "--machine-month",
    "machine_month": "--machine-month",
    "rent_per_hour": "--rent",
    "operations_per_month": "--operations",
    "watts_busy": "--watts",
    "watts_idle": "--idle-watts",
    "price_per_kwh": "--electricity-price",
    "capacity": "--capacity",
    "large_share": "--large-share",
    "escalated": "--escalated",
}
"""Of the sums, by the options that fill them."""
_LONG = re.compile(rf"(?<![-\w])(?:{'|'.join(name for name in _FIELDS if '_' in name)})(?!\w)")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The command line of `octavo cost`."""

    turns_per_day: float
    input_tokens: float
    output_tokens: float
    cached: float
    cache_write: float
    days: float
    hours: float
    peak: float
    hosted: list[str] | None
    batch: bool
    prices: Path | None
    machine_month: float | None
    rent: float | None
    hardware: str | None
    accelerators: int
    purchase: float | None
    years: float | None
    residual: float
    operations: float | None
    watts: float | None
    idle_watts: float | None
    electricity_price: float | None
    pue: float
    capacity: float | None
    machines: int | None
    large_share: float | None
    escalated: float | None
    currency: str
    worksheet: bool
    json: bool


@dataclass(frozen=True, kw_only=True)
class AskedOfTeam:
    """The command line of `octavo cost team`."""

    people: float
    questions: float
    input_tokens: float
    output_tokens: float
    hours: float
    peak: float
    days: float
    ttft: float | None
    tpot: float
    convention: Convention
    at_once: str
    memory: int | None
    utilization: float
    reserved: int | None
    model: str | None
    weights: list[str] | None
    hosted: list[str] | None
    prices: Path | None
    currency: str
    worksheet: bool
    json: bool


@contextmanager
def _told_in_options() -> Iterator[None]:
    """Errors name what was typed, and not the fields of the sums."""
    try:
        yield
    except InvalidParameter as error:
        raise InvalidParameter(in_options(str(error)), error.param) from None


def in_options(message: str) -> str:
    """A message of the sums, with options in place of fields' names."""
    first, _, rest = message.partition(" ")
    if rest.startswith(("is ", "and ", "go ")) and first in _FIELDS:
        message = f"{_FIELDS[first]} {rest}"
    return _LONG.sub(lambda found: _FIELDS[found.group()], message)


def compare_costs(asked: Asked) -> None:
    """Raises InvalidParameter."""
    with _told_in_options():
        _compare_costs(asked)


def _compare_costs(asked: Asked) -> None:
    prices = Prices(asked.prices)
    turn = Turn(
        input=asked.input_tokens,
        output=asked.output_tokens,
        cached=asked.cached,
        cache_write=asked.cache_write,
    )
    traffic = Traffic(
        turns_per_day=asked.turns_per_day, turn=turn, days=asked.days, peak=asked.peak, hours=asked.hours
    )
    sheet = Sheet()
    made = compare(
        traffic,
        _hosted(asked.hosted, prices, asked.currency),
        _owned(asked, prices),
        sheet,
        capacity=asked.capacity,
        machines=asked.machines,
        batch=asked.batch,
        large_share=asked.large_share,
        escalated=asked.escalated,
    )
    if asked.json:
        _print_json(msgspec.to_builtins(made), sheet)
        return
    console = Console(highlight=False, emoji=False)
    if asked.worksheet:
        _print_sheet(sheet, console)
    _print_comparison(made, console)
    if not asked.worksheet:
        _print_notes(sheet, console)


def describe_team(asked: AskedOfTeam) -> None:
    """Raises InvalidParameter."""
    with _told_in_options():
        _describe_team(asked)


def _describe_team(asked: AskedOfTeam) -> None:
    turn = Turn(input=asked.input_tokens, output=asked.output_tokens)
    traffic = Traffic(
        turns_per_day=asked.people * asked.questions,
        turn=turn,
        days=asked.days,
        peak=asked.peak,
        hours=asked.hours,
    )
    slots = tuple(int(one) for one in numbers("--at-once", asked.at_once))
    if min(slots) < 1:
        raise InvalidParameter(f"--at-once is {asked.at_once!r}; write whole numbers of 1 or more.")
    sheet = Sheet()
    traffic.write(sheet)
    service_s = e2e_s(asked.ttft or 0.0, asked.tpot, turn.output, asked.convention)
    if service_s <= 0:
        raise InvalidParameter(
            "An answer takes no time with this TTFT and TPOT; give --tpot, such as 40ms.", "tpot"
        )
    count = "N - 1" if asked.convention == "gaps" else "N"
    how = f"TTFT + ({count}) × TPOT with N = {figure(turn.output)}"
    made = load(traffic, service_s, slots, sheet, how)
    fits = _rooms(asked, turn, sheet)
    bills: dict[str, float] = {}
    for name, price in _hosted(asked.hosted, Prices(asked.prices), asked.currency):
        sheet.section(f"Hosted: {name} ({price.source}, {price.as_of})")
        each = cost_per_turn(name, price, turn, sheet)
        text = f"{figure(each)} × {figure(traffic.turns_per_day)} turns"
        bills[name] = sheet.line(name, text, each * traffic.turns_per_day, f"{price.currency} a day")
    if asked.json:
        told = msgspec.to_builtins(made, str_keys=True)
        told["waits"] = {key: None if math.isinf(value) else value for key, value in told["waits"].items()}
        _print_json({**told, "fits": fits, "hosted_per_day": bills}, sheet)
        return
    console = Console(highlight=False, emoji=False)
    if asked.worksheet:
        _print_sheet(sheet, console)
    _print_team(made, fits, bills, asked, console)
    if not asked.worksheet:
        _print_notes(sheet, console)


def list_prices(path: Path | None, json: bool) -> None:
    """Raises InvalidParameter."""
    prices = Prices(path)
    if json:
        _print_json(
            {"hosted": msgspec.to_builtins(prices.hosted), "rents": msgspec.to_builtins(prices.rents)}
        )
        return
    console = Console(highlight=False, emoji=False)
    table = Table(
        "hosted, a million tokens", "input", "cached", "output", "batch", "as of", "source", box=None
    )
    for name, one in sorted(prices.hosted.items()):
        table.add_row(name, *_row(one), one.as_of, one.source)
        for tier in one.tiers:
            cached = "" if tier.cached is None else figure(tier.cached)
            table.add_row(f"  above {tier.above_tokens:,}", figure(tier.input), cached, figure(tier.output))
    table.columns[-1].overflow = "fold"
    console.print(table)
    console.print()
    table = Table("rented, an hour of one", "price", "as of", "source", box=None)
    for name, rent in sorted(prices.rents.items(), key=lambda item: item[1].per_hour):
        table.add_row(name, f"{figure(rent.per_hour)} {rent.currency}", rent.as_of, rent.source)
    table.columns[-1].overflow = "fold"
    console.print(table)


def _row(one: HostedModel) -> tuple[str, str, str, str]:
    batch = "" if one.batch_discount is None else f"-{100 * one.batch_discount:g} %"
    cached = "" if one.cached is None else figure(one.cached)
    return figure(one.input), cached, f"{figure(one.output)} {one.currency}", batch


def _hosted(texts: list[str] | None, prices: Prices, currency: str) -> list[tuple[str, HostedModel]]:
    found = [prices.hosted_model(text, currency) for text in texts or []]
    names = [name for name, _ in found]
    if len(set(names)) < len(names):
        raise InvalidParameter(f"--hosted has a name twice: {', '.join(names)}.")
    return found


def _owned(asked: Asked, prices: Prices) -> Owned | None:
    rent, watts, idle = asked.rent, asked.watts, asked.idle_watts
    currency = asked.currency
    given = [asked.machine_month, asked.rent, asked.purchase, asked.hardware]
    if all(one is None for one in given):
        if asked.capacity is not None or asked.machines is not None:
            raise InvalidParameter(
                "What a machine costs is missing; give --machine-month, --rent, --purchase or --hardware."
            )
        return None
    if asked.hardware is not None:
        entry = hardware(asked.hardware)
        if asked.machine_month is None and rent is None and asked.purchase is None:
            found = prices.rent(asked.hardware)
            rent, currency = found.per_hour, found.currency
            if asked.electricity_price is not None:
                raise InvalidParameter(
                    f"The rent of {asked.hardware} that is known ({figure(rent)} {currency} an hour, {found.source}) "
                    "has electricity in it; leave --electricity-price out, or give --rent of a place that meters it "
                    "apart."
                )
        watts = entry.watts if watts is None else watts
        idle = entry.idle_watts if idle is None else idle
    power = None
    if asked.electricity_price is not None:
        if watts is None or idle is None:
            raise InvalidParameter(
                "--electricity-price is given, and what the machine draws is not; give --watts and --idle-watts, or "
                "--hardware."
            )
        power = Power(watts_busy=watts, watts_idle=idle, price_per_kwh=asked.electricity_price, pue=asked.pue)
    return Owned(
        currency=currency,
        per_month=asked.machine_month,
        rent_per_hour=rent,
        purchase=asked.purchase,
        years=asked.years,
        residual=asked.residual,
        operations_per_month=asked.operations,
        power=power,
        accelerators=asked.accelerators,
    )


def _rooms(asked: AskedOfTeam, turn: Turn, sheet: Sheet) -> dict[str, int]:
    """How many requests fit, by the weights."""
    if asked.memory is None and asked.model is None and not asked.weights:
        return {}
    if asked.memory is None or asked.model is None:
        raise InvalidParameter("What fits follows from --memory and --model together; give both.")
    shape = model(asked.model)
    sizes = {f"{bits}-bit": shape.parameters * bits / 8 for bits in (16, 8, 4)}
    if asked.weights:
        try:
            sizes = {text: float(parse_size(text)) for text in asked.weights}
        except typer.BadParameter as error:
            raise InvalidParameter(f"--weights: {error.message}") from None
    sheet.section("What fits in the memory")
    fits = {}
    for name, size in sizes.items():
        one = Room(
            memory=asked.memory,
            utilization=asked.utilization,
            reserved=asked.reserved or 0.0,
            weights=size,
            kv_per_token=shape.kv_bytes_per_token(16),
            tokens=turn.input + turn.output,
        )
        fits[name] = room(one, sheet, f"{name}: ")
    return fits


def _print_comparison(made: Comparison, console: Console) -> None:
    table = Table("", f"{made.currency} a month", "a turn", "a million tokens", "local is cheaper", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for offer in [*([made.own] if made.own else []), *made.hosted]:
        name = offer.name
        if offer is made.own:
            name = f"local, {made.machines} machine{'s' if made.machines != 1 else ''}"
        from_ = ""
        if offer.crossover_turns_per_day is not None:
            from_ = f"from {offer.crossover_turns_per_day:,.0f} turns a day"
            if offer.crossover_utilization is not None:
                from_ += f" ({100 * offer.crossover_utilization:.0f} % of what they can do)"
        elif made.own is not None and offer is not made.own:
            from_ = "never"
        table.add_row(
            name, *(_money(x) for x in (offer.per_month, offer.per_turn, offer.per_million_blended)), from_
        )
    for mixture in made.mixtures:
        even = (
            "" if mixture.breaks_even_at is None else f"up to a share of {100 * mixture.breaks_even_at:.1f} %"
        )
        table.add_row(f"{mixture.name} ({100 * mixture.share:g} %)", _money(mixture.per_month), "", "", even)
    console.print(table)
    console.print(f"\nThe cheapest is {made.cheapest.name}, if its answers are good enough.", markup=False)
    if made.utilization is not None:
        console.print(f"The own machines are used {100 * made.utilization:.1f} % on average.")


def _print_team(
    made: Load, fits: dict[str, int], bills: dict[str, float], asked: AskedOfTeam, console: Console
) -> None:
    console.print(
        f"An answer takes {figure(made.service_s)} s; {figure(made.busy_hours)} busy hours a day, ", end=""
    )
    console.print(
        f"{100 * made.of_day:.1f} % of the day, {100 * made.of_hours:.1f} % of {figure(asked.hours)} hours."
    )
    for count, wait in made.waits.items():
        told = (
            "never ends: more is asked than it can answer"
            if math.isinf(wait)
            else f"is {figure(wait)} s on average"
        )
        console.print(f"At the peak, {count} at once: the wait {told}.")
    for name, count in fits.items():
        told = f"about {count} requests fit beside them" if count else "nothing fits beside them"
        console.print(f"Weights of {name}: {told}.", markup=False)
    for name, bill in bills.items():
        console.print(f"{name}: {_money(bill)} {asked.currency} a day.", markup=False)


def _money(value: float) -> str:
    return f"{value:,.2f}" if value >= 1 else figure(value)


def _print_sheet(sheet: Sheet, console: Console) -> None:
    for section in sheet.sections:
        console.print(section.title, markup=False, style="bold")
        for line in section.lines:
            console.print(f"  {line}", markup=False)
        for note in section.notes:
            console.print(f"  ({note})", markup=False)
        console.print()


def _print_notes(sheet: Sheet, console: Console) -> None:
    for section in sheet.sections:
        for note in section.notes:
            console.print(f"· {note}", markup=False)


def _print_json(told: dict[str, Any], sheet: Sheet | None = None) -> None:
    if sheet is not None:
        told["worksheet"] = [
            {
                "title": section.title,
                "lines": [
                    {"name": one.name, "sum": one.text, "value": one.value, "unit": one.unit}
                    for one in section.lines
                ],
                "notes": section.notes,
            }
            for section in sheet.sections
        ]
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(told), indent=1).decode() + "\n")
