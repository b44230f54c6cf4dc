"""What the measured work costs in money and energy. Knows prices, watts and rates; no run, no model, no market.

Numbers are floats: rates are measured to three digits, so exact decimals would only hide that; what is shown is rounded
once, at the end. What is not given is not known: it is None and shown nowhere, never 0. The arithmetic is in small
functions, so that a plan can use it with rates that were not measured.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from octavo.errors import InvalidParameter

__all__ = [
    "Bill",
    "Cost",
    "HostedBill",
    "HostedPrice",
    "Line",
    "Work",
    "figure",
    "per_million",
    "watts_drawn",
]

JOULES_PER_KWH = 3.6e6
_MOST = 1e9
"""Money or watts: more is a slip of the hand, and would make sums infinite."""


class _Measured(Protocol):
    def value(self, name: str) -> float | None: ...


@dataclass(frozen=True, kw_only=True)
class Work:
    """What was done, per second of the steady window; good answers only, so that they bear what failures cost."""

    request_rate: float | None = None
    input_rate: float | None = None
    """Tokens of prompts, cached ones too."""
    output_rate: float | None = None
    cached_share: float | None = None
    """Of the input tokens."""
    busy_share: float | None = None
    """Of the time: the engine had something to do."""

    @classmethod
    def of(cls, measures: _Measured) -> Work:
        """The measured one."""
        return cls(**{name: measures.value(name) for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class Line:
    """A step of the sum: `text` has the numbers that make `value`."""

    name: str
    text: str
    value: float
    unit: str

    def __str__(self) -> str:
        return f"{self.name} = {self.text} = {figure(self.value)} {self.unit}"


@dataclass(frozen=True, kw_only=True)
class HostedPrice:
    """What an API asks, per million tokens."""

    name: str
    input: float
    output: float
    """Of the answer and its reasoning."""
    cached: float | None = None
    """Of input that its cache has; None: as other input."""
    batch_discount: float = 0.0
    """Off everything, for what need not be answered at once: 0.5 is half the price."""
    currency: str = "USD"

    @property
    def terms(self) -> str:
        """What is taken off, in words; nothing where nothing is."""
        return f", {100 * self.batch_discount:g} % off for batches" if self.batch_discount else ""

    def __post_init__(self) -> None:
        for name in ("input", "output", "cached"):
            _amount(f"hosted {self.name} {name}", getattr(self, name))
        if not 0.0 <= self.batch_discount < 1.0:
            raise InvalidParameter(
                f"hosted {self.name} batch is {self.batch_discount:g}; it is a discount of 0 % or more, below 100 %."
            )

    @classmethod
    def parse(cls, text: str, currency: str = "USD") -> HostedPrice:
        """From `NAME:in=2.5,out=10,cached=0.25,batch=50%`; `cached` and `batch` may be left out.

        Raises InvalidParameter.
        """
        name, colon, rest = text.rpartition(":")
        names = {"in": "input", "out": "output", "cached": "cached", "batch": "batch_discount"}
        found: dict[str, float] = {}
        for piece in rest.split(","):
            match = re.fullmatch(r"\s*(in|out|cached|batch)\s*=\s*(\d+\.?\d*|\.\d+)\s*(%?)\s*", piece)
            if not colon or not name or match is None or bool(match[3]) != (match[1] == "batch"):
                raise _hosted(text, f"{piece.strip()!r} is not understood")
            if names[match[1]] in found:
                raise _hosted(text, f"{match[1]} is there twice")
            found[names[match[1]]] = float(match[2]) / (100.0 if match[3] else 1.0)
        if missing := [key for key in ("in", "out") if names[key] not in found]:
            raise _hosted(text, f"{missing[0]} is missing")
        return cls(name=name.strip(), currency=currency, **found)


@dataclass(frozen=True, kw_only=True)
class HostedBill:
    """The same requests at a hosted API. Money is in its currency; None: it cannot be said."""

    price: HostedPrice
    per_hour: float
    """At the measured rate."""
    per_million_blended: float
    """Per million tokens of input and output together, in the measured ratio."""
    per_request: float | None
    per_document: float | None
    break_even_requests_per_hour: float | None
    """From this many requests an hour the own machine costs less; it may be more than it can do."""
    lines: tuple[Line, ...]


@dataclass(frozen=True, kw_only=True)
class Bill:
    """What it costs. Each number is None where something that it needs is not known."""

    currency: str
    watts: float | None = None
    """At the meter, `pue` in it."""
    per_hour: float | None = None
    machine_per_hour: float | None = None
    electricity_per_hour: float | None = None
    per_million_output: float | None = None
    """The whole cost over the output tokens alone."""
    per_million_input: float | None = None
    """The whole cost over the input tokens alone."""
    per_million_total: float | None = None
    """The whole cost over input and output tokens together."""
    input_to_output: float | None = None
    """Input tokens for each output token: what `per_million_total` is a blend of."""
    per_request: float | None = None
    per_document: float | None = None
    documents_per_hour: float | None = None
    documents_per_hour_per_price: float | None = None
    """Documents an hour for each unit of money an hour, which is documents for each unit of money."""
    joules_per_output_token: float | None = None
    joules_per_request: float | None = None
    kwh_per_million_output: float | None = None
    busy_share: float | None = None
    lines: tuple[Line, ...] = ()
    """How each was computed."""
    notes: tuple[str, ...] = ()
    """What was assumed, and what is missing."""
    hosted: tuple[HostedBill, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a machine costs, and how much work a document is.

    Documents are counted where one of two says what they are. `documents_per_request`: 1 where each is summarised in
    one go, above 1 where a prompt has several, below 1 where one is cut into pieces (0.25: four requests for a
    document). Or `tokens_per_document`: input tokens over this number.
    """

    currency: str = "USD"
    price_per_hour: float | None = None
    """Rent, or what buying it costs in an hour of its life."""
    watts_busy: float | None = None
    watts_idle: float | None = None
    electricity_price_per_kwh: float | None = None
    """Leave it out where the rent has it."""
    pue: float = 1.0
    """Power usage effectiveness: all that a data centre draws over what its machines draw (ISO/IEC 30134-2)."""
    documents_per_request: float | None = None
    tokens_per_document: float | None = None
    hosted: Sequence[HostedPrice] = field(default=())

    def __post_init__(self) -> None:
        for name in ("price_per_hour", "watts_busy", "watts_idle", "electricity_price_per_kwh"):
            _amount(name, getattr(self, name))
        if not (math.isfinite(self.pue) and self.pue >= 1.0):
            raise InvalidParameter(
                f"pue is {self.pue:g}; it is 1 or more: a whole data centre over its machines.", "pue"
            )
        if self.watts_idle is not None and (self.watts_busy is None or self.watts_idle > self.watts_busy):
            busy = "not given" if self.watts_busy is None else f"{self.watts_busy:g}"
            raise InvalidParameter(
                f"watts_idle is {self.watts_idle:g} and watts_busy {busy}; give the busy watts, as many at least.",
                "watts_idle",
            )
        for name in ("documents_per_request", "tokens_per_document"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0.0):
                raise InvalidParameter(f"{name} is {value:g}; it must be above 0.", name)
        if self.documents_per_request is not None and self.tokens_per_document is not None:
            raise InvalidParameter(
                "documents_per_request and tokens_per_document both say what a document is; leave one out.",
                "tokens_per_document",
            )
        for one in self.hosted:
            if one.currency != self.currency:
                raise InvalidParameter(
                    f"hosted {one.name} is in {one.currency} and the machine in {self.currency}; give both in one."
                )

    def bill(self, work: Work) -> Bill:
        """What this work costs on this machine."""
        return _Sheet(self, work).bill()


def watts_drawn(busy_share: float, watts_busy: float, watts_idle: float, pue: float = 1.0) -> float:
    """The mean power at the meter, in watts: linear in the share of busy time (Fan, Weber and Barroso, ISCA 2007)."""
    return (watts_idle + busy_share * (watts_busy - watts_idle)) * pue


def per_million(per_hour: float, rate: float) -> float:
    """Money an hour, and things a second, as money for a million things. `rate` > 0."""
    return per_hour / (rate * 3600.0) * 1e6


def figure(value: float) -> str:
    """Four digits, and all before the point."""
    if value == 0.0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = 3 - math.floor(math.log10(abs(value)))
    text = f"{value:.{max(0, decimals)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


class _Sheet:
    """One sum, step by step; each step writes its line."""

    def __init__(self, cost: Cost, work: Work) -> None:
        self.cost = cost
        self.work = work
        self.lines: list[Line] = []
        self.notes: list[str] = []

    def bill(self) -> Bill:
        cost, work = self.cost, self.work
        money = cost.currency
        watts = self._watts()
        electricity = self._electricity(watts)
        known = [part for part in (cost.price_per_hour, electricity) if part is not None]
        per_hour = None
        if known:
            text = " + ".join(figure(part) for part in known)
            per_hour = self._line("cost", text, sum(known), f"{money} an hour")
        total = _sum(work.input_rate, work.output_rate)
        documents = self._documents()
        tokens = {"output": work.output_rate, "input": work.input_rate, "total": total}
        millions = {name: self._per_million(per_hour, rate, name) for name, rate in tokens.items()}
        return Bill(
            currency=money,
            watts=watts,
            per_hour=per_hour,
            machine_per_hour=cost.price_per_hour,
            electricity_per_hour=electricity,
            per_million_output=millions["output"],
            per_million_input=millions["input"],
            per_million_total=millions["total"],
            input_to_output=_over(work.input_rate, work.output_rate),
            per_request=self._each("cost per request", per_hour, work.request_rate, "requests", money),
            per_document=self._over("cost per document", per_hour, documents, "documents an hour", money),
            documents_per_hour=documents,
            documents_per_hour_per_price=self._over(
                "documents", documents, per_hour, f"{money} an hour", f"an hour for each {money} an hour"
            ),
            joules_per_output_token=self._over(
                "energy per output token", watts, work.output_rate, "tokens/s", "J"
            ),
            joules_per_request=self._over("energy per request", watts, work.request_rate, "requests/s", "J"),
            kwh_per_million_output=self._kwh(watts),
            busy_share=work.busy_share,
            hosted=tuple(self._hosted(price, per_hour, documents) for price in cost.hosted if total),
            lines=tuple(self.lines),
            notes=tuple(self.notes),
        )

    def _watts(self) -> float | None:
        cost, busy = self.cost, self.work.busy_share
        if cost.watts_busy is None:
            if cost.electricity_price_per_kwh is not None:
                self.notes.append("Electricity is left out: watts_busy is not known.")
            return None
        after = f" × {figure(cost.pue)}" if cost.pue != 1.0 else ""
        if cost.watts_idle is None or busy is None:
            missing = "watts_idle is not known" if cost.watts_idle is None else "The busy share is not known"
            self.notes.append(
                f"{missing}: the machine is taken as always busy, which is the most it can draw."
            )
            return self._line("power", f"{figure(cost.watts_busy)} W{after}", cost.watts_busy * cost.pue, "W")
        watts = watts_drawn(busy, cost.watts_busy, cost.watts_idle, cost.pue)
        idle = figure(cost.watts_idle)
        text = f"({idle} W + {figure(busy)} × ({figure(cost.watts_busy)} W − {idle} W)){after}"
        return self._line("power", text, watts, "W")

    def _electricity(self, watts: float | None) -> float | None:
        price = self.cost.electricity_price_per_kwh
        if price is None or watts is None:
            return None
        text = f"{figure(watts)} W ÷ 1000 × {figure(price)}"
        return self._line("electricity", text, watts / 1000.0 * price, f"{self.cost.currency} an hour")

    def _documents(self) -> float | None:
        """An hour."""
        cost, work = self.cost, self.work
        if cost.tokens_per_document is not None:
            if not work.input_rate:
                return None
            value = work.input_rate * 3600.0 / cost.tokens_per_document
            text = f"{figure(work.input_rate)} tokens/s × 3600 ÷ {figure(cost.tokens_per_document)} tokens"
        else:
            each = cost.documents_per_request
            if each is None or not work.request_rate:
                return None
            value = work.request_rate * 3600.0 * each
            text = f"{figure(work.request_rate)} requests/s × 3600 × {figure(each)}"
        return self._line("documents", text, value, "an hour")

    def _per_million(self, per_hour: float | None, rate: float | None, name: str) -> float | None:
        if per_hour is None or not rate:
            return None
        text = f"{figure(per_hour)} ÷ ({figure(rate)} tokens/s × 3600) × 1000000"
        each = f"{self.cost.currency} per million {name} tokens"
        return self._line("cost per million", text, per_million(per_hour, rate), each)

    def _each(
        self, name: str, per_hour: float | None, rate: float | None, things: str, unit: str
    ) -> float | None:
        if per_hour is None or not rate:
            return None
        text = f"{figure(per_hour)} ÷ ({figure(rate)} {things}/s × 3600)"
        return self._line(name, text, per_hour / (rate * 3600.0), unit)

    def _kwh(self, watts: float | None) -> float | None:
        rate = self.work.output_rate
        if watts is None or not rate:
            return None
        text = f"{figure(watts)} W ÷ {figure(rate)} tokens/s × 1000000 ÷ {figure(JOULES_PER_KWH)}"
        return self._line(
            "energy per million output tokens", text, watts / rate * 1e6 / JOULES_PER_KWH, "kWh"
        )

    def _over(
        self, name: str, top: float | None, below: float | None, things: str, unit: str
    ) -> float | None:
        if top is None or not below:
            return None
        return self._line(name, f"{figure(top)} ÷ {figure(below)} {things}", top / below, unit)

    def _hosted(self, price: HostedPrice, own: float | None, documents: float | None) -> HostedBill:
        work = self.work
        sheet = _Sheet(self.cost, work)
        read, written = work.input_rate or 0.0, work.output_rate or 0.0
        cached = 0.0
        if price.cached is not None and work.cached_share is None:
            self.notes.append(
                f"{price.name}: the cached share is not known, so all input has the full price."
            )
        elif price.cached is not None:
            cached = read * (work.cached_share or 0.0)
        asked = price.input if price.cached is None else price.cached
        off = 1.0 - price.batch_discount
        rate = ((read - cached) * price.input + cached * asked + written * price.output) * off
        terms = [
            f"{figure(read - cached)} × {figure(price.input)}",
            f"{figure(written)} × {figure(price.output)}",
        ]
        if cached:
            terms.insert(1, f"{figure(cached)} × {figure(asked)}")
        text = f"({' + '.join(terms)}) × 3600 ÷ 1000000" + (f" × {figure(off)}" if off != 1.0 else "")
        per_hour = sheet._line(f"{price.name}", text, rate * 3600.0 / 1e6, f"{price.currency} an hour")
        each = sheet._each(
            f"{price.name} per request", per_hour, work.request_rate, "requests", price.currency
        )
        even = None
        if own is not None and each:
            even = sheet._over("break-even", own, each, f"{price.currency} per request", "requests an hour")
        return HostedBill(
            price=price,
            per_hour=per_hour,
            per_million_blended=per_million(per_hour, read + written),
            per_request=each,
            per_document=per_hour / documents if documents else None,
            break_even_requests_per_hour=even,
            lines=tuple(sheet.lines),
        )

    def _line(self, name: str, text: str, value: float, unit: str) -> float:
        self.lines.append(Line(name, text, value, unit))
        return value


def _amount(name: str, value: float | None) -> None:
    if value is not None and not 0.0 <= value <= _MOST:
        raise InvalidParameter(
            f"{name} is {value:g}; it is a number from 0 to {_MOST:g}, or left out where it is not known.",
            name,
        )


def _hosted(text: str, reason: str) -> InvalidParameter:
    return InvalidParameter(
        f"hosted is {text!r}, and {reason}; write NAME:in=2.5,out=10,cached=0.25,batch=50%, prices per million tokens.",
        "hosted",
    )


def _sum(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a + b


def _over(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b
