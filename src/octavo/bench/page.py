"""The page of a report: all that was measured, how, and what each word means. Knows its order, and no HTML."""

from __future__ import annotations

import json
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from octavo.bench.cost import Bill, figure
from octavo.bench.curves import distribution_figures, load_figures
from octavo.bench.definitions import DEFINITIONS, DISTRIBUTIONS
from octavo.bench.measures import Group, distributions
from octavo.bench.memory import memory_rows, memory_words
from octavo.bench.record import SIMULATED
from octavo.bench.report import Point, Report
from octavo.bench.shown import bound_label, label_of, show, show_interval
from octavo.bench.slo import show as show_bound
from octavo.bench.timeline import timeline
from octavo.charts.figure import Figure, Lanes
from octavo.charts.page import Code, Facts, Note, Page, Part, Section, Table, Terms, Text

__all__ = ["page", "reproduce"]

_STATS = ("mean", "p50", "p75", "p90", "p95", "p99", "p99_9", "max")

_SCALARS = {
    "Load and answers": (
        "requests", "offered_rate", "request_rate", "goodput", "goodput_rate", "error_share", "short_share",
        "output_rate", "input_rate", "total_rate", "concurrency", "concurrency_max",
    ),
    "The server, as its answers and its metrics tell": (
        "cached_share", "prefix_hit_share", "server_running", "server_running_max", "server_waiting",
        "server_waiting_max", "kv_use", "kv_use_max", "preemptions", "busy_share", "server_output_rate",
        "server_input_rate",
    ),
    "The measuring process": ("client_cpu", "client_cpu_max", "loop_lag_p50", "loop_lag_p99"),
}  # fmt: skip


def page(report: Report) -> Page:
    """Of a record with one run or several."""
    record = report.record
    sections = [
        _section("Load", [*load_figures(report), *_points(report)]),
        _section("Latency", _latency(report)),
        _section("Throughput", _scalars(report.chosen)),
        _section("Memory", _memory(report)),
        _section("Timeline", _timeline(report)),
        _section("Errors", _errors(report.chosen)),
        _section("Groups", _groups(report.chosen)),
        _section("Cost", _cost(report.bill) if report.bill is not None else []),
        _section("How it was measured", _how(report)),
        _section("Definitions", _definitions()),
    ]
    return Page(
        title=f"{record.model} on {Path(record.name).name}",
        about=_about(report),
        top=[*_top(report), Facts(_facts(report))],
        sections=[section for section in sections if section is not None],
        foot="Made by octavo bench; charts by uPlot (MIT). Every number can be computed again from the record.",
    )


def _about(report: Report) -> str:
    record = report.record
    if record.url == SIMULATED:
        return record.server or SIMULATED
    named = f" ({record.server})" if record.server else ""
    return f"{record.url}{named}, measured by octavo {record.octavo}, {_when(record.runs[0].began)}"


def reproduce(options: dict[str, Any], url: str, workload: str) -> str:
    """The command line that measures the same; keys are in no record, so none is here."""
    words = ["octavo", "bench", url, "--workload", workload]
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            words.append(flag)
        elif isinstance(value, list):
            words += [word for one in value for word in (flag, str(one))]
        elif value is not None and value is not False and not isinstance(value, dict):
            words += [flag, str(value)]
    return " ".join(map(shlex.quote, words))


def _section(title: str, parts: list[Part]) -> Section | None:
    return Section(title=title, parts=parts) if parts else None


def _server(report: Report) -> str:
    return report.record.server or "a server that does not name itself"


def _when(began: str) -> str:
    """`2026-01-01 12:30 UTC`, or the text as it is where it is no such time."""
    try:
        return f"{datetime.fromisoformat(began).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return began


def _top(report: Report) -> list[Part]:
    found: list[Part] = []
    if (fault := report.fault) is not None:
        found.append(Note([fault, *_problems(report)], "bad"))
    if (outcome := report.outcome) is not None:
        found.append(Note([outcome], "good" if report.chosen.met else "bad"))
    if report.valid and (problems := _problems(report)):
        found.append(Note(problems))
    return found


def _problems(report: Report) -> list[str]:
    return report.problems


def _facts(report: Report) -> list[tuple[str, str, str]]:
    point = report.chosen

    def beside(name: str) -> str:
        return show_interval(name, point.interval(name))

    failed = point.value("error_share")
    facts = [
        ("Load", point.load, f"{len(point.runs)} runs" if len(point.runs) > 1 else ""),
        ("Output", show("output_rate", point.value("output_rate")), beside("output_rate")),
        ("Answered", show("request_rate", point.value("request_rate")), beside("request_rate")),
        ("TTFT p50", show("ttft", point.value("ttft_p50")), beside("ttft_p50")),
        ("TTFT p99", show("ttft", point.value("ttft_p99")), beside("ttft_p99")),
        ("ITL p50", show("itl", point.value("itl_p50")), beside("itl_p50")),
        ("ITL p99", show("itl", point.value("itl_p99")), beside("itl_p99")),
        ("E2E p50", show("e2e", point.value("e2e_p50")), beside("e2e_p50")),
        (
            "Goodput",
            show("goodput", point.value("goodput")),
            "of offered" if report.slo else "answered at all",
        ),
        ("Errors", show("error_share", failed), "none" if failed == 0 else "of offered"),
    ]
    if report.bill is not None and report.bill.per_million_output is not None:
        cost = f"{figure(report.bill.per_million_output)} {report.bill.currency}"
        facts.append(("Cost", cost, "per million output tokens"))
    return facts


def _points(report: Report) -> list[Part]:
    if len(report.points) < 2:
        return []
    names = [
        "request_rate",
        "output_rate",
        "ttft_p50",
        "ttft_p99",
        "itl_p50",
        "itl_p99",
        "e2e_p50",
        "goodput",
    ]
    head = ["load", "runs", *(label_of(name) for name in names), *(["meets the SLO"] if report.slo else [])]
    rows = [
        [
            point.load,
            str(len(point.runs)),
            *(show(name, point.value(name)) for name in names),
            *([{True: "yes", False: "no", None: "not judged"}[point.met]] if report.slo else []),
        ]
        for point in report.points
    ]
    bad = [place for place, point in enumerate(report.points) if not point.valid or point.met is False]
    parts: list[Part] = [Table(caption="Each load", head=head, rows=rows, bad=bad)]
    told = [f"{point.load}: {problem}" for point in report.points for problem in point.problems]
    return [*parts, Note(told)] if told else parts


def _latency(report: Report) -> list[Part]:
    point = report.chosen
    run, window = report.chosen_run, point.measures[0].window
    rows = []
    for name in DISTRIBUTIONS:
        values = [point.value(f"{name}_{stat}") for stat in _STATS]
        if any(value is not None for value in values):
            rows.append([label_of(name), *(show(name, value) for value in values)])
    several = f", means over {len(point.runs)} runs" if len(point.runs) > 1 else ""
    table = Table(
        caption=f"Latencies at {point.load}{several}",
        head=["", *(stat.replace("_", ".") for stat in _STATS)],
        rows=rows,
    )
    figures: list[Part] = [*distribution_figures(distributions(run, window))]
    return [table, *_verdict(report), *figures]


def _verdict(report: Report) -> list[Part]:
    point = report.chosen
    if point.trial is None or not point.trial.parts:
        return []
    rows = []
    for one in point.trial.parts:
        values = [
            "–" if value is None else show_bound(_from_zero(one.part.name, value), one.part.kind)
            for value in one.values
        ]
        bound = f"{one.part.sign} {show_bound(one.part.bound, one.part.kind)}"
        rows.append([bound_label(one.part.name), bound, ", ".join(values), "yes" if one.met else "no"])
    several = len(point.trial.outcomes) > 1
    head = ["target", "bound", "measured in each run" if several else "measured", "met"]
    bad = [place for place, one in enumerate(point.trial.parts) if not one.met]
    note = Text("In percentiles that are judged, requests that failed count as infinitely late.")
    return [Table(caption=f"The SLO {report.slo} at {point.load}", head=head, rows=rows, bad=bad), note]


def _from_zero(name: str, value: float) -> float:
    """A queue that shrinks piles nothing up."""
    return max(0.0, value) if name == "backlog" else value


def _scalars(point: Point) -> list[Part]:
    tables: list[Part] = []
    for title, names in _SCALARS.items():
        rows = []
        for name in names:
            if (value := point.value(name)) is not None:
                ends = [show_interval(name, point.interval(name))] if len(point.runs) > 1 else []
                rows.append([label_of(name), show(name, value), *ends])
        head = ["", "mean of runs", "95 % interval"] if len(point.runs) > 1 else ["", "value"]
        if rows:
            tables.append(Table(caption=title, head=head, rows=rows))
    return tables


def _memory(report: Report) -> list[Part]:
    account = report.chosen_run.memory
    words, rows = memory_words(account), memory_rows(account)
    table = Table(caption="The scheduler's own account of the whole run", head=["", "value"], rows=rows)
    return [*([Text(words)] if words else []), *([table] if rows else [])]


def _timeline(report: Report) -> list[Part]:
    point = report.chosen
    figures: list[Figure | Lanes] = timeline(report.chosen_run, point.measures[0].window)
    words = "Drag over a figure to look closer; all of them follow. Twice a click, or Show all, goes back."
    if len(report.record.runs) > 1:
        words += f" Drawn is run {point.runs[0] + 1} of {len(report.record.runs)}, at {point.load}."
    return [Text(words), *figures]


def _errors(point: Point) -> list[Part]:
    rows = [
        [one.error, "–" if one.status is None else str(one.status), str(one.count), one.message or ""]
        for measures in point.measures
        for one in measures.errors
    ]
    return (
        [
            Table(
                caption="In the measured time",
                head=["kind", "status", "count", "said"],
                rows=rows,
                words=(0, 3),
            )
        ]
        if rows
        else []
    )


def _groups(point: Point) -> list[Part]:
    measures = point.measures[0]
    parts: list[Part] = []
    for title, groups in (
        ("Tenants", measures.tenants),
        ("Priorities", {str(key): group for key, group in measures.priorities.items()}),
        ("Turns", {str(key + 1): group for key, group in measures.turns.items()}),
    ):
        if groups:
            parts.append(_group_table(title, groups))
    return parts


def _group_table(title: str, groups: dict[str, Group]) -> Table:
    names = [("ttft", "p50"), ("ttft", "p99"), ("itl", "p99"), ("e2e", "p50")]

    def value(group: Group, metric: str, stat: str) -> str:
        summary = group.summaries.get(metric)
        return "–" if summary is None else show(metric, float(getattr(summary, stat)))

    rows = [
        [
            key or "(none)",
            str(group.requests),
            *(value(group, metric, stat) for metric, stat in names),
            show("goodput", group.goodput),
            show("error_share", group.error_share),
        ]
        for key, group in groups.items()
    ]
    head = ["", "requests", *(label_of(f"{metric}_{stat}") for metric, stat in names), "goodput", "errors"]
    return Table(caption=title, head=head, rows=rows)


def _cost(bill: Bill) -> list[Part]:
    rows = [[line.name, line.text, f"{figure(line.value)} {line.unit}"] for line in bill.lines]
    parts: list[Part] = [Table(caption="How it is computed", head=["", "sum", "is"], rows=rows, words=(0, 1))]
    for hosted in bill.hosted:
        rows = [[line.name, line.text, f"{figure(line.value)} {line.unit}"] for line in hosted.lines]
        parts.append(
            Table(
                caption=f"At {hosted.price.name}{hosted.price.terms}",
                head=["", "sum", "is"],
                rows=rows,
                words=(0, 1),
            )
        )
    return [*parts, Note(bill.notes)] if bill.notes else parts


def _how(report: Report) -> list[Part]:
    record, point = report.record, report.chosen
    run, measures = report.chosen_run, point.measures[0]
    total = len(run.exchanges)
    inside = int(measures.value("requests") or 0)
    words = (
        f"Latencies are of {inside} of {total} requests, and rates of what came in "
        f"{measures.window.length_s:.1f} s: {measures.window.rule}."
    )
    if measures.window.steady:
        words += " What was sent before or after is in no figure but the timeline."
    facts = [
        ["URL", record.url],
        ["server", _server(report)],
        ["model", record.model],
        ["API", record.api],
        ["workload", record.name],
        ["seed", ", ".join(dict.fromkeys(str(one.seed) for one in record.runs))],
        ["runs", str(len(record.runs))],
        ["measured by", f"octavo {record.octavo}"],
        *([key, str(value)] for key, value in record.machine.items()),
    ]
    asked = record.options.get("target")
    notes: list[str] = []
    if isinstance(asked, dict):
        facts.append(["prompts", "token ids" if asked.get("prompts") == "ids" else "texts"])
        facts.append(["fields that the server takes", ", ".join(map(str, asked.get("takes", ()))) or "none"])
        notes = [str(note) for note in asked.get("notes", ())]
    return [
        Text(words),
        Table(caption="", head=["", ""], rows=facts, words=(0, 1)),
        *([Note(notes)] if notes else []),
        Text("The same again (keys are in no record):"),
        Code(reproduce(record.options, record.url, record.name)),
        Code(json.dumps(record.workload, indent=2, ensure_ascii=False), title="The workload"),
    ]


def _definitions() -> list[Part]:
    terms = []
    for one in DEFINITIONS:
        lines = [one.words, f"= {one.formula}"]
        if one.excluded:
            lines.append(f"Not in it: {one.excluded}.")
        lines.append(f"Whose: {one.source}.")
        terms.append((f"{one.label} ({one.name})", lines))
    return [Terms(terms)]
