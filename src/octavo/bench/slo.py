"""What is fast enough: `ttft_p99<500ms,itl_p99<100ms`, and whether measures meet it. Knows no run and no search.

Two kinds of parts. With a stat (`ttft_p99<500ms`) or of the whole run (`output_rate>1000`, `error_share<1%`): judged
on a run's measures. Without a stat (`ttft<500ms`): what each request must keep to be a good one, as in DistServe
(Zhong et al., OSDI 2024) and in vLLM's `--goodput`; then `goodput>=99%` says how many must, where nothing else does.
A percentile says it too: `ttft_p99<500ms` makes 500 ms the bound of each request, unless there is one without a stat.

Failed requests are infinitely late in every percentile that is judged here. Else a server that drops one request in
ten would look faster than one that answers all.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from octavo.bench.definitions import DISTRIBUTIONS, Unit, definition, known, split
from octavo.bench.shown import label_of
from octavo.bench.times import GAPS, ExchangeTimes
from octavo.errors import InvalidParameter

__all__ = ["Judged", "Measured", "Part", "RequestBound", "Slo", "Verdict", "show"]

Kind = Literal["time", "rate", "share", "count"]

_KINDS: dict[Unit, Kind] = {
    "s": "time",
    "s/token": "time",
    "1/s": "rate",
    "tokens/s": "rate",
    "share": "share",
    "count": "count",
    "cores": "count",
}
_OF_REQUESTS = tuple(name for name in DISTRIBUTIONS if definition(name).better == "lower")
"""What a client may ask of each of its requests; how late the measuring process was is not the server's."""
_OF_ANY_TEXT = ("ttft", "ttft_intended")
"""Which every answer has but an empty one. A server that answers nothing, at once, is not a good one."""

_UNITS = {"us": (1.0, 1e6), "µs": (1.0, 1e6), "ms": (1.0, 1e3), "s": (1.0, 1.0), "m": (60.0, 1.0)}
"""Seconds, as times and over: 700 / 1000 is the same number as 0.7, and 700 × 0.001 is not."""
_PART = re.compile(r"([^<>=]*?)\s*(<=|>=|<|>)\s*([^<>=]*)")
_NUMBER = re.compile(r"(\d+\.?\d*(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?)\s*(.*)", re.IGNORECASE)
_ERRORS = 0.01
_GOOD = 0.99


class Measured(Protocol):
    """What is asked of the measures of a run."""

    def value(self, name: str) -> float | None:
        """Of a metric with its stat, or of the whole run: seconds, 1/s, or a share from 0 to 1; None: not known."""

    def late(self, name: str) -> float | None:
        """The same, but failed requests count as infinitely late in percentiles and maxima of answers' times."""


@dataclass(frozen=True)
class Part:
    """One bound on a run."""

    name: str
    """As `Measured.value` takes it."""
    kind: Kind
    sign: str
    """`<`, `<=`, `>` or `>=`."""
    bound: float
    """Seconds, 1/s, or a share from 0 to 1."""
    implied: bool = False
    """Not written, but follows from what is."""

    @property
    def upper(self) -> bool:
        """Whether less is better."""
        return self.sign[0] == "<"

    def holds(self, value: float) -> bool:
        """Whether the value is on the good side."""
        match self.sign:
            case "<":
                return value < self.bound
            case "<=":
                return value <= self.bound
            case ">":
                return value > self.bound
            case _:
                return value >= self.bound

    def excess(self, value: float | None) -> float:
        """How far beyond the bound, smoothly, on one scale for all kinds: below 0 is good, 0.1 is about 10 % too much.

        For times and rates it is the logarithm of their ratio to the bound, and for shares the difference in parts of
        what the bound allows. Infinite for no value.
        """
        if value is None or math.isnan(value):
            return math.inf
        if self.kind in ("time", "rate") and self.bound > 0.0:
            ratio = value / self.bound if self.upper else self.bound / value if value > 0.0 else math.inf
            return math.log(ratio) if ratio > 0.0 else -math.inf
        beyond = value - self.bound if self.upper else self.bound - value
        allowed = self.bound if self.upper else 1.0 - self.bound
        beyond /= allowed if allowed > 0.0 else 1.0
        return math.log1p(beyond) if beyond > 0.0 else beyond

    def __str__(self) -> str:
        return f"{self.name}{self.sign}{show(self.bound, self.kind).replace(' ', '')}"


@dataclass(frozen=True)
class RequestBound:
    """What each good request keeps."""

    metric: str
    sign: str
    """`<` or `<=`."""
    bound: float
    """Seconds."""
    share: float | None = None
    """For metrics with many values in a request (ITL, ICL): the share of them that keep it; None for all. From
    `itl_p99<100ms` it is 0.99, so that a request is judged as the run is."""

    def of(self, times: ExchangeTimes) -> float | None:
        """What this bounds of one request, in seconds; None where the request has no such value."""
        return times.value(self.metric, self.share)

    def keeps(self, value: float | None) -> bool:
        """An answer without the value keeps it (one token has no gap), but one without any text has no first token."""
        if value is None:
            return self.metric not in _OF_ANY_TEXT
        return value < self.bound if self.sign == "<" else value <= self.bound


@dataclass(frozen=True)
class Judged:
    """A part, and what came of it."""

    part: Part
    value: float | None
    """Percentiles have failed requests in them as infinitely late. None: there is none, so the part is not met."""
    met: bool
    reason: str | None = None
    """Why it is not met, in words, where the value alone does not say it."""

    @property
    def margin(self) -> float | None:
        """Room left in parts of the bound: 0.1 is 10 % better than it must be, below 0 is not met."""
        if self.value is None or self.part.bound == 0.0:
            return None
        room = (self.part.bound - self.value) / self.part.bound
        return room if self.part.upper else -room

    def __str__(self) -> str:
        if self.value is None:
            return f"{label_of(self.part.name)} has no value: {self.reason}"
        bound = f"{self.part.sign} {show(self.part.bound, self.part.kind)}"
        text = f"{label_of(self.part.name)} {show(self.value, self.part.kind)} (bound {bound})"
        return f"{text}: {self.reason}" if self.reason else text


@dataclass(frozen=True)
class Verdict:
    """What came of a whole SLO."""

    parts: tuple[Judged, ...]

    @property
    def met(self) -> bool:
        """Whether each part is."""
        return all(one.met for one in self.parts)

    @property
    def worst(self) -> Judged:
        """The part that is farthest beyond its bound, or nearest to it."""
        return max(self.parts, key=lambda one: (not one.met, one.part.excess(one.value)))

    def __str__(self) -> str:
        """What is not met, or else what is nearest to its bound."""
        missed = [str(one) for one in self.parts if not one.met]
        return "; ".join(missed or [str(self.worst)])


@dataclass(frozen=True)
class Slo:
    """A service level objective."""

    text: str
    parts: tuple[Part, ...]
    """Judged on the run; those that are implied come last."""
    requests: tuple[RequestBound, ...]
    """What makes a request a good one; nothing: goodput is not defined."""

    @classmethod
    def parse(cls, text: str) -> Slo:
        """From `metric_stat<value,…`.

        `<` or `<=` for what should be low, `>` or `>=` for what should be high. Times have a unit (us, ms, s, m),
        shares may have %, rates are per second. Implied: `goodput>=99%` where a bound without a stat has no goodput
        beside it; else `error_share<=1%` where neither errors nor goodput are bounded.
        Raises InvalidParameter, with the nearest name where one is not known.
        """
        parts: dict[str, Part] = {}
        each: dict[str, RequestBound] = {}
        pieces = [piece.strip() for piece in text.split(",")]
        for piece in pieces:
            if not piece:
                hint = "write parts such as ttft_p99<500ms, with a comma between them"
                raise _wrong(f"slo is {text!r}: {'it' if len(pieces) == 1 else 'a part'} is empty; {hint}.")
            name, sign, bound = _split(piece)
            if name in parts or name in each:
                raise _wrong(f"slo has {name} twice, the second time as {piece!r}; leave one out.")
            if name in _OF_REQUESTS:
                each[name] = RequestBound(name, sign, bound)
            else:
                parts[name] = Part(name, _kind(name), sign, bound)
        if each and "goodput" not in parts:
            parts["goodput"] = Part("goodput", "share", ">=", _GOOD, implied=True)
        elif "goodput" not in parts and "error_share" not in parts:
            parts["error_share"] = Part("error_share", "share", "<=", _ERRORS, implied=True)
        bounds = tuple(each.values()) + _from_percentiles(parts.values(), each)
        for name in ("goodput", "goodput_rate"):
            if name in parts and not bounds:
                raise _wrong(
                    f"slo bounds {name}, and nothing says what a good request is; add one like ttft<500ms."
                )
        return cls(text, tuple(parts.values()), bounds)

    def good(self, times: ExchangeTimes, /) -> bool:
        """Whether a request that was answered keeps every bound of single requests; without one, it does."""
        return all(bound.keeps(bound.of(times)) for bound in self.requests)

    def judge(self, measures: Measured) -> Verdict:
        """Of one run, part by part."""
        return Verdict(tuple(_judge(part, measures) for part in self.parts))

    def __str__(self) -> str:
        return self.text


def show(value: float, kind: Kind) -> str:
    """With the unit that fits, and three digits or all before the point: `812 ms`, `1.25 s`, `0.4 %`, `1230/s`."""
    if math.isinf(value):
        return "never" if kind == "time" else "infinite"
    match kind:
        case "time":
            size = abs(value)
            unit, scale = ("µs", 1e6) if size < 1e-3 else ("ms", 1e3) if size < 1.0 else ("s", 1.0)
            return f"{_digits(value * scale)} {unit if value else 's'}"
        case "share":
            return f"{_digits(value * 100.0)} %"
        case "rate":
            return f"{_digits(value)}/s"
        case "count":
            return _digits(value)


def _digits(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000.0 else f"{value:.3g}"


def _judge(part: Part, measures: Measured) -> Judged:
    value = measures.late(part.name)
    if value is None:
        return Judged(part, None, False, "it was not measured, or no request has it")
    if math.isinf(value):
        failed = measures.value("error_share") or 0.0
        return Judged(part, value, False, f"{show(failed, 'share')} of the requests failed")
    return Judged(part, value, part.holds(value))


def _split(piece: str) -> tuple[str, str, float]:
    """The name, the sign and the bound of a part that makes sense."""
    found = _PART.fullmatch(piece)
    if found is None:
        raise _wrong(f"slo has {piece!r}, which is no bound; write one like ttft_p99<500ms or goodput>=95%.")
    name, sign, rest = found[1].strip().lower().replace("p99.9", "p99_9"), found[2], found[3].strip()
    if name not in _names():
        close = difflib.get_close_matches(name, _names(), 1, cutoff=0.5)
        hint = f"did you mean {close[0]}?" if close else "names are like ttft_p99, e2e_p50, output_rate."
        raise _wrong(f"slo has {piece!r}, and {name or 'nothing'!r} is no metric with a stat; {hint}")
    kind, more = _kind(name), _more(name)
    if more is not None and more is (sign[0] == "<"):
        turned = (">" if more else "<") + sign[1:]
        raise _wrong(
            f"slo has {piece!r}, but more of it is {'better' if more else 'worse'}; write {name}{turned}{rest}."
        )
    number = _NUMBER.fullmatch(rest)
    if number is None:
        raise _wrong(
            f"slo has {piece!r}, and {rest!r} is no number of 0 or more; write {name}{sign}{_like(kind)}."
        )
    value, unit = float(number[1]), number[2].strip().lower()
    return name, sign, _bound(piece, kind, name + sign, value, number[1], unit)


def _bound(piece: str, kind: Kind, before: str, value: float, digits: str, unit: str) -> float:
    if kind == "time":
        if not unit:
            raise _wrong(
                f"slo has {piece!r}, a time without its unit; write {before}{digits}ms or {before}{digits}s."
            )
        if unit not in _UNITS:
            raise _wrong(f"slo has {piece!r}, and {unit!r} is no unit of time; there are us, ms, s and m.")
        value = value * _UNITS[unit][0] / _UNITS[unit][1]
    elif kind == "share":
        if unit not in ("", "%"):
            raise _wrong(
                f"slo has {piece!r}, and {unit!r} is no unit of a share; write % or nothing (from 0 to 1)."
            )
        value = value / 100.0 if unit else value
        if value > 1.0:
            raise _wrong(
                f"slo has {piece!r}, a share above the whole; write {before}{digits}% if that is meant."
            )
    elif unit not in ("", "/s")[: 1 + (kind == "rate")]:
        raise _wrong(f"slo has {piece!r}, and {unit!r} is no unit here; {_like(kind)} has none.")
    edge = kind == "share" and ((value == 1.0 and before[-1] == ">") or (value == 0.0 and before[-1] == "<"))
    if edge or not math.isfinite(value) or (value == 0.0 and kind in ("time", "rate")):
        raise _wrong(f"slo has {piece!r}, which every run meets or none can; give a bound between.")
    return value


def _from_percentiles(parts: Iterable[Part], each: dict[str, RequestBound]) -> tuple[RequestBound, ...]:
    """Of each metric the highest percentile: what nearly all requests must keep."""
    highest: dict[str, tuple[float, Part]] = {}
    for part in parts:
        metric, stat = _stat(part.name)
        if metric in _OF_REQUESTS and metric not in each and stat is not None and stat[0] == "p":
            highest[metric] = max(
                highest.get(metric, (0.0, part)), (_quantile(stat), part), key=lambda one: one[0]
            )
    return tuple(
        RequestBound(metric, part.sign, part.bound, q if metric in GAPS else None)
        for metric, (q, part) in highest.items()
    )


def _names() -> list[str]:
    return [*known(), *_OF_REQUESTS]


def _stat(name: str) -> tuple[str, str | None]:
    """The metric and its stat, None for a metric of the whole run or of single requests."""
    if name in _OF_REQUESTS:
        return name, None
    metric, stat = split(name)
    return metric.name, stat


def _quantile(stat: str) -> float:
    return float(stat[1:].replace("_", ".")) / 100.0


def _kind(name: str) -> Kind:
    return _KINDS[definition(name).unit]


def _more(name: str) -> bool | None:
    """Whether more is better; None where either may be wanted."""
    better = definition(name).better
    return None if better is None else better == "higher"


def _like(kind: Kind) -> str:
    return {"time": "500ms", "rate": "1000", "share": "95%", "count": "0"}[kind]


def _wrong(message: str) -> InvalidParameter:
    return InvalidParameter(message, "slo")
