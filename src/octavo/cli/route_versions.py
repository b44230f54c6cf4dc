"""`octavo route versions`, `rollback` and `recalibrate`: a folder of policies. Knows the terminal."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from octavo.cli.route_data import print_json
from octavo.errors import InvalidParameter
from octavo.routing.nearest import nearest
from octavo.routing.outcomes import read_outcomes
from octavo.routing.policy import Policy
from octavo.routing.recalibration import recalibrate
from octavo.routing.versions import add, read_book, roll_back

__all__ = ["recalibrate_policy", "roll_policy_back", "show_versions"]

SOURCES = ("said", "reask", "judge")


def show_versions(folder: Path, added: Path | None, *, json: bool) -> None:
    """`octavo route versions`."""
    if added is not None:
        add(folder, Policy.load(added))
    book = read_book(folder)
    if json:
        print_json({"current": book.current, "versions": book.versions})
        return
    table = Table("", "version", "made", "threshold", "for", box=None, pad_edge=False)
    for one in book.versions:
        mark = "*" if one.number == book.current else ""
        table.add_row(mark, str(one.number), one.made, f"{one.threshold:+.4f}", one.target)
    Console().print(table)


def roll_policy_back(folder: Path, number: int | None) -> None:
    """`octavo route rollback`."""
    version = roll_back(folder, number)
    Console().print(
        f"Version {version.number} decides: threshold {version.threshold:+.4f}, {version.target}.",
        markup=False,
    )


def recalibrate_policy(
    folder: Path,
    outcomes: Path,
    quality: float,
    source: str,
    tiers: str | None,
    *,
    careful: bool,
    dry: bool,
    json: bool,
) -> None:
    """`octavo route recalibrate`."""
    if source not in SOURCES:
        raise InvalidParameter(f"--source is {source!r}; {nearest(source, SOURCES)}", "--source")
    names = None if tiers is None else [name.strip() for name in tiers.split(",")]
    decided, found = read_outcomes(outcomes)
    result, version = recalibrate(
        folder, decided, found, quality=quality, source=source, tiers=names, careful=careful, keep=not dry
    )
    if json:
        print_json({"recalibrated": result, "version": version})
        return
    console = Console()
    table = Table("", "", "95 % of draws", box=None, pad_edge=False)
    for label, one, form in (
        ("threshold", result.threshold, "+.4f"),
        ("mean outcome", result.quality, ".4f"),
        ("to the dearer tier", result.dearest_share, ".3f"),
    ):
        table.add_row(label, format(one.value, form), f"{one.low:{form}} to {one.high:{form}}")
    console.print(table)
    console.print(
        f"from {result.rows:,} outcomes; the better tier alone has {result.best:.4f}. "
        + ("Nothing was written." if version is None else f"Version {version.number} decides from now on."),
        markup=False,
    )
