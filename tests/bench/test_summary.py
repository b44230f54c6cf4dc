"""The terminal's summary: whole words at 80 columns, the bad news first, nothing that moves a cursor."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import pytest
from rich.console import Console

from octavo.bench.compare import compare
from octavo.bench.compat import TOOLS, recompute
from octavo.bench.cost import Cost, HostedPrice
from octavo.bench.report import Report, report
from octavo.bench.shown import show
from octavo.bench.slo import Slo
from octavo.bench.summary import print_comparison, print_compat, print_summary
from tests.bench.runs import answer, run
from tests.bench.synthetic import synthetic_record, synthetic_run


def _printed(made: Report, *, terminal: bool = False, width: int = 80) -> list[str]:
    file = io.StringIO()
    console = Console(
        file=file, width=width, force_terminal=terminal, highlight=False, markup=False, legacy_windows=False
    )
    print_summary(made, console)
    return file.getvalue().splitlines()


def _row(lines: list[str], name: str) -> str:
    [found] = [line for line in lines if line.startswith(name + "  ")]
    return found


def test_a_run_fits_eighty_columns_without_a_cut_word() -> None:
    made = report(synthetic_record(synthetic_run(4.0, fail_every=50)))
    lines = _printed(made)
    assert max(map(len, lines)) <= 80 and not [line for line in lines if "…" in line or "\x1b" in line]
    [point] = made.points
    for name, metric in (("TTFT", "ttft"), ("ITL", "itl"), ("E2E from arrival", "e2e_intended")):
        values = [
            show(metric, point.value(f"{metric}_{stat}"))
            for stat in ("mean", "p50", "p90", "p95", "p99", "max")
        ]
        assert _row(lines, name).split() == [*name.split(), *" ".join(values).split()]
    assert show("output_rate", point.value("output_rate")) in _row(lines, "tokens")
    assert any("2 × cut: the connection was closed" in line for line in lines)
    assert any("measured are" in line for line in lines)


def test_the_bad_news_comes_first() -> None:
    late = [
        answer(place * 20, 50, 10, 5, started_ms=place * 20 + 400, sent_ms=place * 20 + 400)
        for place in range(200)
    ]
    lines = _printed(report(synthetic_record(run(late))))
    bad = next(place for place, line in enumerate(lines) if line.startswith("NOT VALID"))
    assert "Requests were sent late" in lines[bad + 1]
    assert bad < next(place for place, line in enumerate(lines) if line.startswith("TTFT"))


def test_a_sweep_is_a_line_for_each_load() -> None:
    record = synthetic_record(*(synthetic_run(rate) for rate in (2.0, 14.0)))
    lines = _printed(report(record, slo=Slo.parse("ttft_p99<400ms")))
    assert _row(lines, "2 requests/s").split()[-1] == "met"
    assert _row(lines, "14 requests/s").split()[-1] == "no"
    assert max(map(len, lines)) <= 80 and not [line for line in lines if "…" in line]
    text = " ".join(line.strip() for line in lines)
    assert "2 a second meet ttft_p99<400ms" in text and "14 do not: TTFT p99" in text
    assert "met: TTFT p99" in text and "At 2 requests/s:" in text


def test_a_load_with_a_run_that_is_not_valid_is_marked() -> None:
    late = synthetic_run(14.0)
    for one in late.exchanges:
        one.started_us = one.sent_us = one.intended_us + 900_000
    lines = _printed(report(synthetic_record(synthetic_run(2.0), late)))
    assert _row(lines, "14 requests/s !") and _row(lines, "2 requests/s")
    assert any(line.startswith("! has a run that is not valid") for line in lines)


def test_prices_and_repeats_are_shown() -> None:
    record = synthetic_record(synthetic_run(4.0, seed=1), synthetic_run(4.0, seed=2))
    lines = _printed(report(record, cost=Cost(price_per_hour=1.0)))
    assert " ".join(_row(lines, "±").split()[1:]) == "half of the 95 % interval of the mean over 2 runs"
    once = report(synthetic_record(), cost=Cost(hosted=[HostedPrice.parse("a:in=1,out=2,batch=25%")]))
    text = " ".join(" ".join(_printed(once)).split())
    assert "±" not in text and "input and output, 25 % off for batches" in text and "document" not in text
    assert "±" in _row(lines, "answered") and "USD per million output tokens" in _row(lines, "cost")


def test_colours_are_for_terminals_and_hostile_words_for_nobody() -> None:
    record = synthetic_record(model="a[bold]\x1b[2Jb\nc")
    lines = _printed(report(record), terminal=True)
    assert "\x1b[1m" in lines[0] and "\x1b[2J" not in "\n".join(lines)
    assert "a[bold] [2Jb c" in lines[0]


def test_another_tool_s_numbers_have_its_names() -> None:
    for tool in TOOLS:
        file = io.StringIO()
        made = recompute(synthetic_run(4.0), tool)
        print_compat(made, Console(file=file, width=80, highlight=False, markup=False))
        text = file.getvalue()
        assert made.version in text and all(value.name in text for value in made.values)
        words = " ".join(text.split())
        for value in made.values:  # a note is found by the mark of its rows
            row = next(line for line in text.splitlines() if line.startswith(f"{value.name} "))
            found = re.search(r" (\[\d+\])", row)
            assert (found is not None) == bool(value.note)
            assert found is None or f"{found[1]} {value.note}." in words
        assert max(map(len, text.splitlines())) <= 80


def _wide_as(width: int, show_it: Callable[[Console], None]) -> str:
    file = io.StringIO()
    show_it(Console(file=file, width=width, highlight=False, markup=False))
    text = file.getvalue()
    assert "…" not in text and max(map(len, text.splitlines())) <= width
    return text


@pytest.mark.parametrize("width", [20, 30, 40, 60])
def test_a_narrow_terminal_has_fewer_columns_and_no_cut_number(width: int) -> None:
    record = synthetic_record(*(synthetic_run(rate) for rate in (2.0, 14.0)))
    made = report(record, slo=Slo.parse("ttft_p99<400ms"))
    text = _wide_as(width, lambda console: print_summary(made, console))
    shown = " ".join(text.split())
    for point in made.points:
        assert show("ttft_p99", point.value("ttft_p99")) in shown
    assert show("e2e_p99", made.chosen.value("e2e_p99")) in shown
    if width == 40:
        heads = next(line.split() for line in text.splitlines() if line.split()[:1] == ["p50"])
        assert heads == ["p50", "p99"]
    for tool in TOOLS:
        other = recompute(synthetic_run(4.0), tool)
        text = _wide_as(max(width, 40), lambda console, other=other: print_compat(other, console))  # type: ignore[misc]
        assert all(value.name in text for value in other.values)
    both = compare(record, record)
    words = " ".join(
        _wide_as(width, lambda console: print_comparison(both, ("a.json", "b.json"), console)).split()
    )
    assert all(show(row.name, row.a) in words for row in both.rows)


def test_a_queue_that_shrinks_piles_nothing_up() -> None:
    made = report(synthetic_record(), slo=Slo.parse("ttft_p99<9s"))
    backlog = made.chosen.measures[0].backlog
    assert backlog is not None and backlog.share < -0.001
    text = " ".join(" ".join(_printed(made)).split())
    assert "met: 0 % of the offered requests piled up" in text
