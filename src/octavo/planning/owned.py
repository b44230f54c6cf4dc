"""What a machine of one's own costs in a month, rented or bought. Knows money and watts, no traffic and no model."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.bench.cost import watts_drawn
from octavo.errors import InvalidParameter
from octavo.planning.amounts import check_amount
from octavo.planning.sheet import Sheet, figure

__all__ = ["Owned", "Power"]

_MOST_PUE = 10.0
_MOST_YEARS = 100.0
_LEAST_YEARS = 1 / 365


@dataclass(frozen=True, kw_only=True)
class Power:
    """What it draws, and what that costs. Electricity that the rent has in it is left out."""

    watts_busy: float
    watts_idle: float
    price_per_kwh: float
    pue: float = 1.0
    """All that the place draws over what its machines draw (ISO/IEC 30134-2)."""

    def __post_init__(self) -> None:
        for name in ("watts_busy", "watts_idle", "price_per_kwh"):
            check_amount(name, getattr(self, name))
        if self.watts_idle > self.watts_busy:
            raise InvalidParameter(
                f"watts_idle is {self.watts_idle:g} and watts_busy {self.watts_busy:g}; idle is the lower one.",
                "watts_idle",
            )
        if not 1.0 <= self.pue <= _MOST_PUE:
            raise InvalidParameter(f"pue is {self.pue:g}; it is from 1 to {_MOST_PUE:g}.", "pue")

    def watts(self, busy_share: float) -> float:
        """At the meter."""
        return watts_drawn(busy_share, self.watts_busy, self.watts_idle, self.pue)


@dataclass(frozen=True, kw_only=True)
class Owned:
    """One machine. Exactly one of `per_month`, `rent_per_hour` and `purchase` says what it costs."""

    currency: str = "USD"
    per_month: float | None = None
    """All of it, by somebody's own sums."""
    rent_per_hour: float | None = None
    purchase: float | None = None
    years: float | None = None
    """Over which the purchase is written off."""
    residual: float = 0.0
    """What it is worth then."""
    operations_per_month: float | None = None
    """People, space, network; None: not known."""
    power: Power | None = None
    accelerators: int = 1
    """`rent_per_hour` and the watts are for one of so many."""

    def __post_init__(self) -> None:
        names = ("per_month", "rent_per_hour", "purchase")
        known = [name for name in names if getattr(self, name) is not None]
        if len(known) != 1:
            given = " and ".join(known) or "none of them"
            raise InvalidParameter(
                f"A machine's cost is one of per_month, rent_per_hour and purchase; given is {given}.",
                "machine_month",
            )
        for name in (*names, "years", "residual", "operations_per_month"):
            check_amount(name, getattr(self, name))
        if (self.purchase is not None) != (self.years is not None):
            raise InvalidParameter(
                "purchase is given without years, or years without purchase; over how long is it written off?",
                "years",
            )
        if self.years is not None and not _LEAST_YEARS <= self.years <= _MOST_YEARS:
            raise InvalidParameter(
                f"years is {self.years:g}; a purchase is written off over a day at least and {_MOST_YEARS:g} years.",
                "years",
            )
        if self.purchase is not None and self.residual > self.purchase:
            raise InvalidParameter(
                f"residual is {self.residual:g}, more than the purchase of {self.purchase:g}.", "residual"
            )

    def month(self, days: float, busy_share: float | None, sheet: Sheet) -> float:
        """Money for a month of so many days. `busy_share` (0 to 1) matters where there is electricity to pay; None: the
        machine is taken as always busy, which is the most."""
        money = f"{self.currency} a month"
        parts = [self._machine(days, sheet)]
        if self.power is not None:
            if self.rent_per_hour is not None:
                sheet.note("Electricity is added to the rent, as for a place that meters it apart.")
            if busy_share is None:
                sheet.note(
                    "How busy the machine is is not known: it is taken as always busy, the most it can draw."
                )
            parts.append(
                self._electricity(self.power, days, 1.0 if busy_share is None else busy_share, sheet)
            )
        if self.operations_per_month is not None:
            parts.append(sheet.line("operations", "as given", self.operations_per_month, money))
        if len(parts) == 1:
            return parts[0]
        return sheet.line("a machine", " + ".join(figure(part) for part in parts), sum(parts), money)

    def energy_per_busy_s(self) -> float:
        """Money that a busy second costs more than an idle one."""
        if self.power is None:
            return 0.0
        more = self.power.watts(1.0) - self.power.watts(0.0)
        return self.accelerators * more / 3.6e6 * self.power.price_per_kwh

    def _machine(self, days: float, sheet: Sheet) -> float:
        money = f"{self.currency} a month"
        if self.per_month is not None:
            return sheet.line("machine", "as given", self.per_month, money)
        if self.rent_per_hour is not None:
            text = f"{figure(self.rent_per_hour)} × 24 h × {figure(days)} days{_times(self.accelerators)}"
            return sheet.line("rent", text, self.rent_per_hour * 24 * days * self.accelerators, money)
        assert self.purchase is not None and self.years is not None
        left = f" − {figure(self.residual)}" if self.residual else ""
        text = (
            f"({figure(self.purchase)}{left}) ÷ ({figure(self.years)} years × 365 days) × {figure(days)} days"
        )
        value = (self.purchase - self.residual) / (self.years * 365) * days
        return sheet.line("written off", text, value, money)

    def _electricity(self, power: Power, days: float, busy_share: float, sheet: Sheet) -> float:
        idle, busy, pue = figure(power.watts_idle), figure(power.watts_busy), power.pue
        after = (f" × {figure(pue)} PUE" if pue != 1.0 else "") + _times(self.accelerators)
        text = f"({idle} W + {figure(busy_share)} × ({busy} W − {idle} W)){after}"
        watts = sheet.line("power", text, power.watts(busy_share) * self.accelerators, "W")
        text = f"{figure(watts)} W ÷ 1000 × 24 h × {figure(days)} days × {figure(power.price_per_kwh)}"
        value = watts / 1000 * 24 * days * power.price_per_kwh
        return sheet.line("electricity", text, value, f"{self.currency} a month")


def _times(count: int) -> str:
    return f" × {count} accelerators" if count != 1 else ""
