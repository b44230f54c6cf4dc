"""`octavo simulate --paper`: a published experiment, run again. Knows the terminal, no experiment."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from octavo.cli.results import check_outputs
from octavo.simulation.papers import parts, reproduce
from octavo.simulation.papers.page import HEAD, cells, page
from octavo.simulation.papers.table import AGREES, Result

__all__ = ["run_paper"]


def run_paper(name: str, console: Console, *, quick: bool, output: Path | None, html: Path | None) -> None:
    """Run, print and write. Raises ClientError."""
    total = parts(name, quick)
    check_outputs(output, html)
    result = _reproduce(name, quick, total)
    if output is not None:
        output.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    if html is not None:
        html.write_text(page(result).html(), encoding="utf-8")
    _print(result, console)


def _reproduce(name: str, quick: bool, total: int) -> Result:
    """With a bar on the terminal, if standard error is one."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    # No thread of its own draws it: while time is virtual it would be told a wrong one.
    with Progress(
        *columns,
        console=Console(stderr=True),
        transient=True,
        auto_refresh=False,
        disable=not sys.stderr.isatty(),
    ) as bar:
        task = bar.add_task("", total=total)
        begun = 0

        def told(words: str) -> None:
            nonlocal begun
            bar.update(task, completed=begun, description=words, refresh=True)
            begun += 1

        return reproduce(name, quick=quick, told=told)


def _print(result: Result, console: Console) -> None:
    console.print(f"{result.title}\n{result.source}\n", markup=False)
    for name, words in result.settings:
        console.print(f"{name:>20}  {words}", markup=False)
    for group in dict.fromkeys(row.group for row in result.rows):
        rows = [row for row in result.rows if row.group == group]
        table = Table(*HEAD, box=None, pad_edge=False, title=group, title_justify="left")
        for row in rows:
            table.add_row(*cells(row))
        console.print()
        console.print(table)
        for row in rows:
            if row.why:
                console.print(f"  {row.name}: {row.why}", markup=False)
    console.print("\nNot modelled:")
    for sentence in result.missing:
        console.print(f"  {sentence}", markup=False)
    console.print(
        f"\nUncalibrated: steps take what a roofline says. A ratio is simulated over published, to the nearer end of a "
        f"range; outside {AGREES[0]:g} to {AGREES[1]:g} it is explained.",
        markup=False,
    )
    if result.quick:
        console.print("With --quick there are few requests: directions hold, numbers do not.")
