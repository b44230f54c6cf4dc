"""How a metric's value is written and drawn: its unit and axis. Knows definitions and charts, no run."""

from __future__ import annotations

from octavo.bench.definitions import definition, split
from octavo.bench.intervals import Interval
from octavo.charts.figure import Axis, shown

__all__ = ["axis_of", "bound_label", "label_of", "show", "show_interval", "show_load", "show_spread"]


def axis_of(name: str, *, label: str | None = None, log: bool = False) -> Axis:
    """For a metric ("ttft") or a value of it ("ttft_p99")."""
    metric = definition(name)
    text = metric.label if label is None else label
    match metric.unit:
        case "s":
            return Axis(label=text, quantity="time", log=log)
        case "s/token":
            return Axis(label=f"{text} per token" if label is None else text, quantity="time", log=log)
        case "share":
            return Axis(label=text, quantity="share", low=0)
        case "1/s":
            return Axis(label=text, unit="requests/s", low=0)
        case "tokens/s":
            return Axis(label=text, unit="tokens/s", low=0)
        case "cores":
            return Axis(label=text, unit="cores", low=0)
    return Axis(label=text, low=0)


def show(name: str, value: float | None) -> str:
    """A value of a metric with its unit; `–` for None."""
    return shown(value, axis_of(name))


def show_interval(name: str, interval: Interval | None) -> str:
    """`168 to 300 tokens/s`; the unit once, where it is the same. Nothing for None."""
    if interval is None:
        return ""
    low, high = show(name, interval.low), show(name, interval.high)
    number, _, unit = low.partition(" ")
    return f"{number if unit == high.partition(' ')[2] else low} to {high}"


def show_spread(name: str, value: float, interval: Interval | None) -> str:
    """`234 ±66 tokens/s`; without an interval just the value."""
    text = show(name, value)
    if interval is None:
        return text
    number, _, unit = text.partition(" ")
    reach = show(name, (interval.high - interval.low) / 2)
    amount, _, its_unit = reach.partition(" ")
    return f"{number} ±{amount} {unit}".rstrip() if unit == its_unit else f"{text} ±{reach}"


def label_of(name: str) -> str:
    """`ttft_intended_p99` as TTFT from arrival p99; `ttft` as TTFT, and with `/token` where a value is for each."""
    metric = definition(name)
    if name == metric.name:
        return f"{metric.label}/token" if metric.unit == "s/token" else metric.label
    return f"{metric.label} {(split(name)[1] or '').replace('_', '.')}"


def bound_label(name: str) -> str:
    """Of a part of an SLO; a search also asks whether the server kept up."""
    return "Piled up, of offered requests" if name == "backlog" else label_of(name)


def show_load(rate: float | None, clients: int | None) -> str:
    """What was asked for: `2.5 requests/s`, `32 clients`, or `the workload's own times`."""
    if clients is not None:
        return f"{clients} clients" if clients != 1 else "1 client"
    if rate is None:
        return "the workload's own times"
    return f"{rate:,.0f} requests/s" if rate >= 999_999.5 else f"{rate:.6g} requests/s"
