"""How many turns a day, and what they ask of whoever answers them. Knows rates, no money."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.errors import InvalidParameter
from octavo.planning.amounts import MOST
from octavo.planning.hosted import Turn
from octavo.planning.sheet import Sheet, figure

__all__ = ["DAY_S", "Traffic"]

DAY_S = 86_400


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Turns on average, and how much more there are when most are asked."""

    turns_per_day: float
    turn: Turn
    days: float = 30
    """Of a month."""
    peak: float = 1.0
    """The busiest time's rate over the mean."""
    hours: float = 24.0
    """Of a day in which all of it is asked."""

    def __post_init__(self) -> None:
        limits = {"turns_per_day": MOST, "days": 31.0, "hours": 24.0, "peak": 1e6}
        for name, most in limits.items():
            value = getattr(self, name)
            if not 0.0 < value <= most:
                raise InvalidParameter(f"{name} is {value:g}; it is above 0, {most:g} at most.", name)
        if self.peak < 1.0:
            raise InvalidParameter(
                f"peak is {self.peak:g}; the busiest time has the mean rate at least: 1.", "peak"
            )

    @property
    def turns_per_month(self) -> float:
        return self.turns_per_day * self.days

    @property
    def rate(self) -> float:
        """Turns a second while they are asked, on average."""
        return self.turns_per_day / (self.hours * 3600)

    def write(self, sheet: Sheet) -> None:
        """What it asks of a server."""
        sheet.section("What is asked")
        hours = "" if self.hours == 24.0 else f", in {figure(self.hours)} hours of the day"
        text = f"{figure(self.turns_per_day)} turns a day ÷ {figure(self.hours * 3600)} s{hours}"
        rate = sheet.line("requests", text, self.rate, "a second")
        each = f"{figure(rate)} a second × "
        sheet.line("output", f"{each}{figure(self.turn.output)}", rate * self.turn.output, "tokens a second")
        sheet.line("input", f"{each}{figure(self.turn.input)}", rate * self.turn.input, "tokens a second")
        if self.peak != 1.0:
            sheet.line("at the peak", f"{each}{figure(self.peak)}", rate * self.peak, "requests a second")
