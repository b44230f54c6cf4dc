"""A report as plain values, for `--json` and for other programs. Knows names and numbers, no words around them."""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.bench.compat.report import CompatReport
from octavo.bench.definitions import known
from octavo.bench.report import Point, Report

__all__ = ["plain_compat", "plain_report"]


def plain_report(report: Report, compat: list[CompatReport] | None = None) -> dict[str, Any]:
    """What can be written as JSON: times in seconds, rates per second, shares from 0 to 1; null: not known."""
    record = report.record
    return {
        "url": record.url,
        "model": record.model,
        "api": record.api,
        "server": record.server,
        "workload": record.name,
        "octavo": record.octavo,
        "valid": report.valid,
        "problems": report.problems,
        "slo": str(report.slo) if report.slo is not None else None,
        "met": report.chosen.met,
        "outcome": report.outcome,
        "highest_rate": _found(report),
        "chosen": report.points.index(report.chosen),
        "points": [_point(report, point) for point in report.points],
        "cost": None if report.bill is None else msgspec.to_builtins(report.bill),
        "compat": [plain_compat(one) for one in compat or ()],
    }


def plain_compat(report: CompatReport) -> dict[str, Any]:
    """Another tool's numbers, by its names."""
    return {
        "tool": report.tool,
        "version": report.version,
        "values": {one.name: one.value for one in report.values},
        "notes": list(report.notes),
    }


def _found(report: Report) -> dict[str, Any] | None:
    found = report.found
    if found is None:
        return None
    return {
        "rate": found.best.rate if found.best is not None else None,
        "not_met_at": found.above.rate
        if found.above is not None and found.above.decision == "not met"
        else None,
        "crossing": None
        if found.rate is None
        else {"estimate": found.rate.estimate, "interval": [found.rate.low, found.rate.high]},
        "ended": found.ended,
    }


def _point(report: Report, point: Point) -> dict[str, Any]:
    values, intervals = {}, {}
    for name in known():
        value = point.value(name)
        if value is not None:
            values[name] = value
            interval = point.interval(name)
            if interval is not None:
                intervals[name] = [interval.low, interval.high]
    return {
        "rate": point.rate,
        "clients": point.clients,
        "runs": [
            {
                "run": place,
                "seed": report.record.runs[place].seed,
                "began": report.record.runs[place].began,
                "window_s": [measures.window.start_us / 1e6, measures.window.end_us / 1e6],
                "window": measures.window.rule,
                "valid": measures.valid and measures.answered,
                "problems": measures.problems,
                "errors": msgspec.to_builtins(measures.errors),
            }
            for place, measures in zip(point.runs, point.measures, strict=True)
        ],
        "valid": point.valid,
        "met": point.met,
        "judged": [
            {"target": str(one.part), "values": list(one.values), "met": one.met, "sure": one.settled}
            for one in (point.trial.parts if point.trial is not None else ())
        ],
        "values": values,
        "intervals": intervals,
    }
