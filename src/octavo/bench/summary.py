"""A report on a terminal: one screen of 80 columns. Knows words and columns; colours only where they are shown.

On a narrower terminal tables have fewer columns, or a line for each value; no number is ever cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from octavo.bench.compat.report import CompatReport
from octavo.bench.cost import Bill, figure
from octavo.bench.definitions import DISTRIBUTIONS
from octavo.bench.memory import memory_words
from octavo.bench.report import Point, Report
from octavo.bench.shown import label_of, show, show_spread
from octavo.bench.slo import show as show_bound
from octavo.bench.trial import PartTrial
from octavo.bench.words import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from octavo.bench.compare import Comparison

__all__ = ["print_comparison", "print_compat", "print_summary"]

_STATS = ("mean", "p50", "p90", "p95", "p99", "max")
"""Of 80 columns more have no room; the page and the JSON have them all."""
_GAP = 2


def print_summary(report: Report, console: Console) -> None:
    """All of it: what was asked, what is wrong, latencies, rates, the server, the client, the cost."""
    _title(report, console)
    if (fault := report.fault) is not None:
        _say(console, fault.replace("Not valid", "NOT VALID"), "bold red")
    for problem in report.problems:
        _item(console, problem, "red" if not report.valid else "yellow")
    if len(report.points) > 1:
        console.print()
        console.print(_loads(report, console.width))
        if not all(point.valid for point in report.points):
            _say(
                console,
                "! has a run that is not valid: see its problems on the page or in the JSON.",
                "yellow",
            )
    if (outcome := report.outcome) is not None:
        console.print()
        _say(console, outcome, "bold green" if report.chosen.met else "bold red")
        for part in report.chosen.trial.parts if report.chosen.trial is not None else ():
            _item(
                console,
                f"{'met' if part.met else 'not met'}: {_told(part)}",
                "green" if part.met else "red",
            )
    if len(report.points) > 1:
        console.print()
        _say(console, f"At {report.chosen.load}:", "bold")
    console.print()
    console.print(_latencies(report.chosen, console.width))
    console.print()
    console.print(_lines(report))
    for error in _errors(report.chosen):
        _item(console, error, "red")


def print_compat(report: CompatReport, console: Console) -> None:
    """Another tool's numbers, by its names."""
    console.print()
    _say(console, f"As {report.tool} {report.version} defines them:", "bold")
    notes = list(dict.fromkeys(value.note for value in report.values if value.note))
    rows = []
    for value in report.values:
        number = f"{value.value:,.4g}" if abs(value.value) < 1e4 else f"{value.value:,.0f}"
        mark = f" [{notes.index(value.note) + 1}]" if value.note else ""
        rows.append([value.name, number, f"{value.unit}{mark}"])
    console.print(_table(["", "", "unit"], rows, console.width))
    for note in dict.fromkeys(report.notes):
        _item(console, note)
    for place, note in enumerate(notes):
        _item(console, f"[{place + 1}] {note}.")


def print_comparison(comparison: Comparison, names: tuple[str, str], console: Console) -> None:
    """The verdict, and each value of both."""
    from octavo.bench.compare_page import change_of

    style = {True: "bold red", False: "bold green", None: "bold yellow"}[comparison.regression]
    _say(console, str(comparison), style)
    for one in comparison.unlike:
        _item(console, str(one), "yellow")
    for note in comparison.notes:
        _item(console, note)
    console.print()
    _say(console, f"A is {names[0]}, B is {names[1]}")
    several = len({row.load for row in comparison.rows}) > 1
    styles = {"worse": "red", "better": "green"}
    heads = ["", *(["load"] if several else []), "A", "B", "change", "B is"]
    rows = []
    for row in comparison.rows:
        load = [row.load] if several else []
        cells = [show(row.name, row.a), show(row.name, row.b), change_of(row, brief=several), row.word]
        rows.append([label_of(row.name), *load, *cells])
    console.print(
        _table(heads, rows, console.width, styles=[styles.get(row.word) for row in comparison.rows])
    )


def _title(report: Report, console: Console) -> None:
    record, point = report.record, report.chosen
    named = f" ({record.server})" if record.server else ""
    _say(console, f"{record.model} at {record.url}{named}", "bold")
    window = point.measures[0].window
    runs = f"{len(record.runs)} runs, " if len(record.runs) > 1 else ""
    inside = int(point.measures[0].value("requests") or 0)
    _say(
        console,
        f"{Path(record.name).name}: {runs}{point.load}, seed {record.runs[0].seed}; measured are {inside} of "
        f"{len(report.chosen_run.exchanges)} requests in {window.length_s:.1f} s, {window.rule}",
    )


def _latencies(point: Point, width: int) -> Table | Text:
    rows = []
    for name in DISTRIBUTIONS:
        values = [point.value(f"{name}_{stat}") for stat in _STATS]
        if any(value is not None for value in values) and (name != "connect" or len(point.runs) == 1):
            rows.append([label_of(name).removesuffix("/token"), *(show(name, value) for value in values)])
    return _table(["", *_STATS], rows, width, spare=("mean", "p95", "p90", "max", "p50"))


def _loads(report: Report, width: int) -> Table | Text:
    names = ("request_rate", "output_rate", "ttft_p50", "ttft_p99", "itl_p99", "goodput")
    heads = ["load", "answered/s", "tokens/s", "TTFT p50", "p99", "ITL p99", "goodput"]
    rows, styles = [], []
    for point in report.points:
        cells = []
        for name in names:
            text = show(name, point.value(name))
            cells.append(text.partition(" ")[0] if name.endswith("_rate") else text)
        if report.slo:
            cells.append({True: "met", False: "no", None: "?"}[point.met])
        rows.append([f"{point.load}{'' if point.valid else ' !'}", *cells])
        styles.append("red" if point.met is False else "yellow" if not point.valid else None)
    spare = ("goodput", "ITL p99", "answered/s", "tokens/s")
    return _table([*heads, *(["SLO"] if report.slo else [])], rows, width, spare=spare, styles=styles)


def _lines(report: Report) -> Table:
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, words in _facts(report):
        table.add_row(name, _plain(words))
    return table


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    point = report.chosen

    def said(name: str, after: str = "") -> str | None:
        value = point.value(name)
        if value is None:
            return None
        return f"{show_spread(name, value, point.interval(name))}{after}"

    def joined(*parts: str | None) -> str:
        return ", ".join(part for part in parts if part)

    answered = said("request_rate")
    yield "answered", joined(answered, said("offered_rate", " offered"))
    yield "tokens", joined(said("output_rate", " out"), said("input_rate", " in"))
    good = "within the SLO" if report.slo is not None and report.slo.requests else "answered at all"
    yield "goodput", joined(said("goodput", f" of offered requests {good}"), said("goodput_rate"))
    yield "in flight", joined(said("concurrency", " on average"), said("concurrency_max", " at most"))
    server = joined(
        said("busy_share", " busy"),
        said("kv_use", " of KV in use"),
        said("cached_share", " of prompts cached"),
        said("server_waiting", " waiting"),
        said("preemptions", " preemptions"),
    )
    if server:
        yield "server", server
    if words := memory_words(report.chosen_run.memory):
        yield "memory", words
    client = joined(
        said("lag_p99", " late (p99)"), said("client_cpu"), said("loop_lag_p99", " loop lag (p99)")
    )
    if client:
        yield "this client", client
    if len(point.runs) > 1:
        yield "±", f"half of the 95 % interval of the mean over {len(point.runs)} runs"
    if report.bill is not None:
        yield from _bill(report.bill)


def _bill(bill: Bill) -> Iterator[tuple[str, str]]:
    money = bill.currency
    for name, value, unit in (
        ("cost", bill.per_million_output, f"{money} per million output tokens"),
        ("", bill.per_million_total, f"{money} per million tokens, input and output"),
        ("", bill.per_request, f"{money} per request"),
        ("", bill.per_document, f"{money} per document"),
        ("", bill.documents_per_hour_per_price, f"documents an hour for each {money} an hour"),
        ("energy", bill.joules_per_output_token, "J per output token"),
        ("", bill.kwh_per_million_output, "kWh per million output tokens"),
    ):
        if value is not None:
            yield name, f"{figure(value)} {unit}"
    for hosted in bill.hosted:
        yield (
            hosted.price.name,
            f"{figure(hosted.per_million_blended)} {money} per million tokens, input and output{hosted.price.terms}",
        )
    for note in bill.notes:
        yield "", note


def _told(part: PartTrial) -> str:
    """Of one that is met too, which its own sentence is not made for."""
    if part.part.name != "backlog":
        return str(part)
    known = [value for value in part.values if value is not None]
    piled = max(0.0, sum(known) / max(1, len(known)))  # a queue that shrinks piles nothing up
    return f"{show_bound(piled, 'share')} of the offered requests piled up"


def _errors(point: Point) -> Iterator[str]:
    share = point.value("error_share")
    if not share:
        return
    yield f"{show('error_share', share)} of the requests have no good answer"
    counts: Counter[str] = Counter()
    for measures in point.measures:
        for one in measures.errors:
            status = f" {one.status}" if one.status not in (None, 200) else ""
            counts[f"{one.error}{status}{f': {one.message}' if one.message else ''}"] += one.count
    for words, count in counts.most_common(5):
        yield f"{count} × {words}"


def _table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    *,
    spare: Sequence[str] = (),
    styles: Sequence[str | None] | None = None,
) -> Table | Text:
    """Without those of the `spare` columns, in their order, that have no room; else a line for each value."""
    from rich.table import Table

    kept = list(range(len(heads)))
    for head in ("", *spare):
        kept = [place for place in kept if not head or heads[place] != head]
        if _width(heads, rows, kept) <= width:
            break
    else:
        return _stacked(heads, rows, styles)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    for place in kept:
        justify: Literal["left", "right"] = "left" if place == 0 else "right"
        table.add_column(heads[place], justify=justify, no_wrap=True, header_style="dim")
    for at, row in enumerate(rows):
        table.add_row(*(_plain(row[place]) for place in kept), style=styles[at] if styles else None)
    return table


def _width(heads: Sequence[str], rows: Sequence[Sequence[str]], kept: Sequence[int]) -> int:
    from rich.cells import cell_len

    widths = [max(map(cell_len, (heads[place], *(row[place] for row in rows)))) for place in kept]
    return sum(widths) + _GAP * (len(kept) - 1)


def _stacked(
    heads: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str | None] | None
) -> Text:
    from rich.text import Text

    lines = []
    for at, (name, *cells) in enumerate(rows):
        told = [f"  {head} {cell}" for head, cell in zip(heads[1:], cells, strict=True)]
        lines += [_plain(line, (styles[at] or "") if styles else "") for line in (name, *told)]
    return Text("\n").join(lines)


def _item(console: Console, text: str, style: str = "") -> None:
    from rich.padding import Padding

    console.print(Padding(_plain(text, style), (0, 0, 0, 2), expand=False))


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(_plain(text, style))


def _plain(text: str, style: str = "") -> Text:
    """Words as they are: no markup, and nothing that moves a terminal's cursor."""
    from rich.text import Text

    return Text(printable(text), style=style)
