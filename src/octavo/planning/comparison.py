"""Hosted against one's own: months, crossovers, mixtures, cascades. Knows money and rates, no latency.

Every number is also a line of a sheet, so that a person can check it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from octavo.bench.cost import JOULES_PER_KWH
from octavo.errors import InvalidParameter
from octavo.planning.amounts import MOST
from octavo.planning.hosted import cost_per_turn
from octavo.planning.owned import Owned
from octavo.planning.prices import HostedModel
from octavo.planning.sheet import Sheet, figure
from octavo.planning.traffic import DAY_S, Traffic

__all__ = ["Comparison", "Mixture", "Offer", "compare"]

_LEAST_RATE = 1e-6


class Offer(msgspec.Struct, kw_only=True):
    """One way to have the turns answered. Money is in the sheet's currency."""

    name: str
    per_month: float
    per_turn: float
    per_million_input: float | None
    """The whole cost over the input tokens alone."""
    per_million_output: float | None
    """The whole cost over the output tokens alone."""
    per_million_blended: float
    """The whole cost over all tokens, in the ratio in which they are asked for."""
    crossover_turns_per_day: float | None = None
    """From so many turns a day on the own machines cost less; None: never, or there are none."""
    crossover_utilization: float | None = None
    """The same as a share of what the own machines can do: above 1 they cannot do it."""


class Mixture(msgspec.Struct, kw_only=True):
    """Two ways together."""

    name: str
    share: float
    """Of the turns that go to the second."""
    per_month: float
    breaks_even_at: float | None = None
    """For own machines: the share above which the cheapest hosted model in their place would cost less. For a cascade:
    the share above which it would be cheaper to ask the second at once."""


class Comparison(msgspec.Struct, kw_only=True):
    """All of them."""

    currency: str
    hosted: list[Offer]
    own: Offer | None = None
    machines: int = 0
    utilization: float | None = None
    """Of the own machines, 0 to 1, on average."""
    next_machine_turns_per_day: float | None = None
    """More than so many turns a day need a machine more."""
    joules_per_output_token: float | None = None
    mixtures: list[Mixture] = []

    @property
    def cheapest(self) -> Offer:
        return min([*self.hosted, *([self.own] if self.own else [])], key=lambda one: one.per_month)


def compare(
    traffic: Traffic,
    hosted: Sequence[tuple[str, HostedModel]],
    owned: Owned | None,
    sheet: Sheet,
    *,
    capacity: float | None = None,
    machines: int | None = None,
    batch: bool = False,
    large_share: float | None = None,
    escalated: float | None = None,
) -> Comparison:
    """`capacity`: turns a second that one machine answers within its targets (measure it: octavo bench --search).
    `machines`: so many, whatever is needed. `large_share`, `escalated`: of the turns, to the first of `hosted`, beside
    each other way: routed there at once, or sent there after a first answer that was not good enough.

    Raises InvalidParameter, where a price is not known too.
    """
    _check(hosted, owned, capacity, large_share, escalated)
    currency = hosted[0][1].currency if hosted else owned.currency if owned else ""
    traffic.write(sheet)
    offers = [_hosted(name, price, traffic, sheet, batch) for name, price in hosted]
    result = Comparison(currency=currency, hosted=offers)
    if owned is not None:
        _own(result, traffic, owned, capacity, machines, sheet)
        _crossovers(result, traffic, owned, capacity, sheet)
    if large_share is not None:
        _mixtures(result, large_share, sheet)
    if escalated is not None:
        _cascades(result, escalated, sheet)
    return result


def _check(
    hosted: Sequence[tuple[str, HostedModel]],
    owned: Owned | None,
    capacity: float | None,
    *shares: float | None,
) -> None:
    if not hosted and owned is None:
        raise InvalidParameter("There is nothing to reckon with; give --hosted, a machine's cost, or both.")
    currencies = {price.currency for _, price in hosted} | ({owned.currency} if owned else set())
    if len(currencies) > 1:
        raise InvalidParameter(f"Prices are in {' and '.join(sorted(currencies))}; give all in one currency.")
    if capacity is not None and not _LEAST_RATE <= capacity <= MOST:
        raise InvalidParameter(
            f"capacity is {capacity:g}; it is turns a second, from {_LEAST_RATE:g} to {MOST:g}.", "capacity"
        )
    for share in shares:
        if share is not None and not 0.0 <= share <= 1.0:
            raise InvalidParameter(f"A share is {share:g}; it is 0 % to 100 %.")
        if share is not None and not hosted:
            raise InvalidParameter("A share of turns goes to a hosted model; give one with --hosted.")


def _offer(name: str, per_month: float, traffic: Traffic, sheet: Sheet, currency: str) -> Offer:
    turn, turns = traffic.turn, traffic.turns_per_month
    millions = {"input": turn.input, "output": turn.output, "blended": turn.input + turn.output}
    each: dict[str, float | None] = {}
    for kind, tokens in millions.items():
        if not tokens:
            each[kind] = None
            continue
        what = "input and output" if kind == "blended" else kind
        text = f"{figure(per_month)} ÷ ({figure(turns)} turns × {figure(tokens)}) × 1000000"
        unit = f"{currency} for a million {what} tokens"
        each[kind] = sheet.line(f"{name}, {kind}", text, per_month / (turns * tokens) * 1e6, unit)
    blended = each["blended"]
    assert blended is not None
    return Offer(
        name=name,
        per_month=per_month,
        per_turn=per_month / turns,
        per_million_input=each["input"],
        per_million_output=each["output"],
        per_million_blended=blended,
    )


def _hosted(name: str, price: HostedModel, traffic: Traffic, sheet: Sheet, batch: bool) -> Offer:
    sheet.section(f"Hosted: {name} ({price.source}, {price.as_of})")
    each = cost_per_turn(name, price, traffic.turn, sheet, batch=batch)
    text = f"{figure(each)} × {figure(traffic.turns_per_day)} turns × {figure(traffic.days)} days"
    month = sheet.line(name, text, each * traffic.turns_per_month, f"{price.currency} a month")
    return _offer(name, month, traffic, sheet, price.currency)


def _own(
    result: Comparison,
    traffic: Traffic,
    owned: Owned,
    capacity: float | None,
    machines: int | None,
    sheet: Sheet,
) -> None:
    sheet.section("Local: machines of one's own")
    needed = 1
    if capacity is not None:
        peak = traffic.rate * traffic.peak
        text = f"{figure(peak)} requests a second at most ÷ {figure(capacity)} of a machine, rounded up"
        needed = int(sheet.line("needed", text, max(math.ceil(peak / capacity - 1e-9), 1), "machines"))
        result.next_machine_turns_per_day = capacity * needed / traffic.peak * traffic.hours * 3600
    elif machines is None:
        sheet.note("What one machine can do is not known (--capacity): one is taken as enough.")
    count = result.machines = needed if machines is None else machines
    if count < needed:
        sheet.note(f"{count} cannot answer what is asked at the peak; {needed} can.")
    busy = None
    if capacity is not None:
        mean = traffic.turns_per_day / DAY_S
        text = f"{figure(mean)} requests a second over the day ÷ ({count} × {figure(capacity)})"
        busy = result.utilization = sheet.line(
            "utilization", text, mean / (count * capacity), "of what they can do"
        )
    each = owned.month(traffic.days, None if busy is None else min(busy, 1.0), sheet)
    total = each
    if count > 1:
        total = sheet.line("local", f"{count} × {figure(each)}", count * each, f"{owned.currency} a month")
    result.own = _offer("local", total, traffic, sheet, owned.currency)
    if owned.power is not None and busy is not None and traffic.turn.output:
        watts = owned.power.watts(min(busy, 1.0)) * owned.accelerators * count
        rate = traffic.turns_per_day / DAY_S * traffic.turn.output
        joules = sheet.line(
            "energy", f"{figure(watts)} W ÷ {figure(rate)} tokens/s", watts / rate, "J an output token"
        )
        result.joules_per_output_token = joules
        sheet.line("energy", f"{figure(joules)} J × 1000000 ÷ {figure(JOULES_PER_KWH)}", joules * 1e6 / JOULES_PER_KWH,
                   "kWh for a million output tokens")  # fmt: skip


def _crossovers(
    result: Comparison, traffic: Traffic, owned: Owned, capacity: float | None, sheet: Sheet
) -> None:
    own, count = result.own, result.machines
    assert own is not None
    sheet.section("From when on the own machines cost less")
    marginal = owned.energy_per_busy_s() / capacity if capacity is not None else 0.0
    fixed = own.per_month - marginal * traffic.turns_per_month
    if marginal:
        text = f"{figure(own.per_month)} − {figure(marginal)} × {figure(traffic.turns_per_month)} turns"
        sheet.line("local, idle", text, fixed, f"{result.currency} a month")
    for offer in result.hosted:
        saved = offer.per_turn - marginal
        if saved <= 0:
            sheet.note(
                f"Never against {offer.name}: a turn there costs no more than the electricity of one here."
            )
            continue
        less = f" − {figure(marginal)}" if marginal else ""
        text = f"{figure(fixed)} ÷ ({figure(traffic.days)} days × ({figure(offer.per_turn)}{less} a turn))"
        offer.crossover_turns_per_day = sheet.line(
            f"against {offer.name}", text, fixed / (traffic.days * saved), "turns a day"
        )
        if capacity is not None:
            most = capacity * count * DAY_S
            text = (
                f"{figure(offer.crossover_turns_per_day)} ÷ ({count} × {figure(capacity)} a second × 86400 s)"
            )
            offer.crossover_utilization = sheet.line(
                f"against {offer.name}", text, offer.crossover_turns_per_day / most, "of what they can do"
            )
            if offer.crossover_utilization > 1.0:
                sheet.note(f"Against {offer.name} they would have to do more than they can.")
    _next_machine(result, traffic, sheet)


def _next_machine(result: Comparison, traffic: Traffic, sheet: Sheet) -> None:
    """What the step to one machine more does."""
    own, count = result.own, result.machines
    assert own is not None
    if (most := result.next_machine_turns_per_day) is not None:
        sheet.line("a machine more", f"above what {count} can do at the peak", most, "turns a day")
    more = own.per_month / count * (count + 1)
    text = f"{figure(own.per_month)} ÷ {count} × {count + 1}"
    sheet.line(f"with {count + 1} machines", text, more, f"{result.currency} a month")
    for offer in result.hosted:
        winner = "local is still cheaper" if more < offer.per_month else f"{offer.name} is cheaper"
        if own.per_month < offer.per_month:
            sheet.note(
                f"With {count + 1} machines against {offer.name} ({figure(offer.per_month)}): {winner}."
            )


def _mixtures(result: Comparison, share: float, sheet: Sheet) -> None:
    large, *others = result.hosted
    sheet.section(f"{figure(100 * share)} % of the turns to {large.name}")
    money = f"{result.currency} a month"
    if result.own is not None:
        text = f"{figure(result.own.per_month)} + {figure(share)} × {figure(large.per_month)}"
        value = sheet.line(
            f"local + {large.name}", text, result.own.per_month + share * large.per_month, money
        )
        result.mixtures.append(Mixture(name=f"local + {large.name}", share=share, per_month=value))
    for offer in others:
        text = (
            f"{figure(1 - share)} × {figure(offer.per_month)} + {figure(share)} × {figure(large.per_month)}"
        )
        value = (1 - share) * offer.per_month + share * large.per_month
        sheet.line(f"{offer.name} + {large.name}", text, value, money)
        result.mixtures.append(Mixture(name=f"{offer.name} + {large.name}", share=share, per_month=value))
        if result.own is None:
            continue
        even = 1 - result.own.per_month / offer.per_month if offer.per_month else 0.0
        text = f"1 − {figure(result.own.per_month)} ÷ {figure(offer.per_month)}"
        if even > 0:
            sheet.line(f"local beats {offer.name}", text, 100 * even, f"% to {large.name} at most")
            sheet.note(
                "Own machines cost as much whatever they do: with fewer turns left for them each costs more."
            )
            local = result.mixtures[0]
            local.breaks_even_at = even if local.breaks_even_at is None else min(even, local.breaks_even_at)
        else:
            sheet.note(f"{offer.name} costs less than the own machines at any share.")


def _cascades(result: Comparison, escalated: float, sheet: Sheet) -> None:
    large, *others = result.hosted
    sheet.section(f"A cascade: {figure(100 * escalated)} % of the turns are answered again by {large.name}")
    money = f"{result.currency} a month"
    for first in [*([result.own] if result.own else []), *others]:
        text = f"{figure(first.per_month)} + {figure(escalated)} × {figure(large.per_month)}"
        value = first.per_month + escalated * large.per_month
        name = f"{first.name}, then {large.name}"
        sheet.line(name, text, value, money)
        even = None
        if large.per_month > first.per_month:
            even = 1 - first.per_month / large.per_month
            text = f"1 − {figure(first.per_month)} ÷ {figure(large.per_month)}"
            sheet.line(
                f"{name}: cheaper than {large.name} alone", text, 100 * even, "% answered again at most"
            )
        else:
            sheet.note(f"{large.name} alone costs no more than {first.name} alone.")
        result.mixtures.append(Mixture(name=name, share=escalated, per_month=value, breaks_even_at=even))
