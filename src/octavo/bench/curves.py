"""Figures of a report: distributions of one run, and what each load brought. Knows measures and figures, no page."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.bench.definitions import definition, split
from octavo.bench.distribution import Distribution
from octavo.bench.report import Point, Report
from octavo.bench.shown import axis_of, label_of
from octavo.charts.figure import Axis, Bound, Figure, Series

__all__ = ["cumulative", "distribution_figures", "load_figures"]

_SHARES = (*(place / 2 for place in range(199)), 99.5, 99.8, 99.9, 99.95, 99.99, 100.0)
"""Percent: even steps, and finer ones where a tail is."""

_TOGETHER = (
    ("Time to first token, first answer token, first sentence", ("ttft", "ttft_intended", "ttfa", "ttfs")),
    ("Time for each token", ("itl", "icl", "tpot", "normalized")),
    ("Time of whole requests", ("e2e", "e2e_intended")),
)
"""Metrics of one size go into one figure."""


def distribution_figures(values: dict[str, Distribution], bounds: Sequence[Bound] = ()) -> list[Figure]:
    """Cumulative distributions. Equal curves are drawn once, under both names."""
    figures = []
    for title, metrics in _TOGETHER:
        curves: dict[tuple[tuple[float, ...], tuple[float, ...]], list[str]] = {}
        for metric in metrics:
            if metric in values and (curve := cumulative(values[metric])) is not None:
                curves.setdefault(curve, []).append(definition(metric).label)
        series = [Series(name=" = ".join(names), x=x, y=y) for (x, y), names in curves.items()]
        if series:
            figures.append(
                Figure(
                    title=title,
                    note="share of values up to a time; a value of 0 has no place on this axis",
                    x=Axis(label="time", quantity="time", log=True),
                    y=Axis(label="share", quantity="share", low=0, high=1),
                    series=series,
                )
            )
    return figures


def cumulative(values: Distribution) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Values and the share up to each, to draw; without 0, which has no place on a logarithmic axis."""
    shares: dict[float, float] = {}
    for percent in _SHARES:
        value = values.percentile(percent)
        if value is not None and value > 0:
            shares[value] = percent / 100  # of equal values the highest share
    return (tuple(shares), tuple(shares.values())) if shares else None


def load_figures(report: Report) -> list[Figure]:
    """What each load brought: latency and throughput against it, with the bounds that were asked for."""
    points = [point for point in report.points if point.rate is not None]
    closed = len(points) < 2
    if closed:
        points = [point for point in report.points if point.clients is not None]
    if len(points) < 2:
        return []
    x = Axis(label="clients" if closed else "asked rate", unit="" if closed else "requests/s", low=0)
    figures = []
    for title, names in (
        ("TTFT against load", ("ttft_p50", "ttft_p99")),
        ("ITL against load", ("itl_p50", "itl_p99")),
        ("E2E against load", ("e2e_p50", "e2e_p99")),
    ):
        shown = _with_bounded(report, names)
        series = [one for name in shown if (one := _against(points, name)) is not None]
        if series:
            metric = split(names[0])[0].name
            figures.append(
                Figure(
                    title=title,
                    note=_interval_note(points),
                    x=x,
                    y=axis_of(metric, log=True),
                    series=series,
                    bounds=_bounds(report, shown),
                )
            )
    series = [one for name in ("output_rate",) if (one := _against(points, name)) is not None]
    if series:
        figures.append(Figure(title="Output against load", x=x, y=axis_of("output_rate"), series=series))
    series = [one for name in ("request_rate", "goodput_rate") if (one := _against(points, name)) is not None]
    if not closed:
        loads = [load for point in points if (load := _load(point)) is not None]
        series.append(Series(name="all that is asked", x=loads, y=loads, colour=8, dashed=True))
    figures.append(Figure(title="Answers against load", x=x, y=axis_of("request_rate"), series=series))
    figures += _latency_throughput(points)
    return figures


def _latency_throughput(points: Sequence[Point]) -> list[Figure]:
    series = []
    for name in ("ttft_p50", "ttft_p99", "itl_p99"):
        found = [
            (output, value, point.load)
            for point in points
            if (output := point.value("output_rate")) is not None and (value := point.value(name)) is not None
        ]
        if found:
            x, y, labels = zip(*found, strict=True)
            series.append(Series(name=label_of(name), kind="path", x=x, y=y, labels=labels))
    if not series:
        return []
    return [
        Figure(
            title="Latency against throughput",
            note="each point is a load; where a curve turns back, more load brings less",
            x=axis_of("output_rate", label="output"),
            y=Axis(label="latency", quantity="time", log=True),
            series=series,
        )
    ]


def _with_bounded(report: Report, names: tuple[str, ...]) -> list[str]:
    """These, and those of the same metric that the SLO bounds."""
    metric = split(names[0])[0].name
    bounded = [part.name for part in report.slo.parts if _metric(part.name) == metric] if report.slo else []
    return list(dict.fromkeys((*names, *bounded)))


def _bounds(report: Report, names: Sequence[str]) -> list[Bound]:
    if report.slo is None:
        return []
    return [Bound(at=part.bound, label=str(part)) for part in report.slo.parts if part.name in names]


def _metric(name: str) -> str:
    return split(name)[0].name


def _load(point: Point) -> float | None:
    return float(point.clients) if point.clients is not None else point.rate


def _against(points: Sequence[Point], name: str) -> Series | None:
    rows = []
    for point in points:
        load, value = _load(point), point.value(name)
        if load is None or value is None:
            continue
        interval = point.interval(name)
        ends = (None, None) if interval is None else (interval.low, interval.high)
        rows.append((load, value, *ends))
    if not rows:
        return None
    x, y, low, high = zip(*rows, strict=True)
    sure = any(end is not None for end in low)
    return Series(
        name=label_of(name), kind="path", x=x, y=y, low=low if sure else None, high=high if sure else None
    )


def _interval_note(points: Sequence[Point]) -> str:
    most = max(len(point.runs) for point in points)
    return f"mean of up to {most} runs each, and its 95 % interval" if most > 1 else "one run each"
