"""Options of `octavo simulate` for several servers. Knows words, and simulates nothing."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from octavo.cli.options import parse_duration, parse_size
from octavo.config import RouterName

__all__ = [
    "Autoscale",
    "ColdStart",
    "DecodeReplicas",
    "Fail",
    "LinkLatency",
    "LinkRate",
    "Mtbf",
    "PrefillReplicas",
    "Repair",
    "Replicas",
    "Routing",
    "ScaleDownAfter",
    "ScaleEvery",
    "ScaleTarget",
]

_FLEET = "Several servers"


def _parse_rate(text: str) -> float:
    """Bytes a second from `25GB/s`, or from bits: `200Gbit/s`. Raises typer.BadParameter."""
    found = re.fullmatch(r"(.*[0-9kmgt])(bit|b)/s", text.strip().lower())
    try:
        amount = parse_size(found[1]) if found is not None else 0
    except typer.BadParameter:
        amount = 0
    if not amount or found is None:
        raise typer.BadParameter(f"{text!r} is not a rate; write such as 25GB/s or 200Gbit/s.")
    return amount / 8 if found[2] == "bit" else float(amount)


Replicas = Annotated[
    int, typer.Option(min=1, max=10_000, metavar="COUNT", rich_help_panel=_FLEET, help="So many servers.")
]
Routing = Annotated[RouterName, typer.Option(rich_help_panel=_FLEET, help="Which of them gets a request.")]
Fail = Annotated[
    list[str] | None,
    typer.Option(
        metavar="WHEN", rich_help_panel=_FLEET, help="'replica 2 at 30s for 60s': it dies; several times."
    ),
]
Mtbf = Annotated[
    float | None,
    typer.Option(
        parser=parse_duration,
        metavar="TIME",
        rich_help_panel=_FLEET,
        help="Of each server, the mean from a start to a failure.",
    ),
]
Repair = Annotated[
    float,
    typer.Option(
        parser=parse_duration, metavar="TIME", rich_help_panel=_FLEET, help="From there to its next start."
    ),
]
Autoscale = Annotated[
    str | None,
    typer.Option(
        metavar="MIN:MAX",
        rich_help_panel=_FLEET,
        help="As many servers as the load wants, in place of --replicas.",
    ),
]
ScaleTarget = Annotated[
    float,
    typer.Option(metavar="COUNT", rich_help_panel=_FLEET, help="Of each server, answers that are to come."),
]
ScaleEvery = Annotated[
    float,
    typer.Option(
        parser=parse_duration, metavar="TIME", rich_help_panel=_FLEET, help="How often the load is looked at."
    ),
]
ColdStart = Annotated[
    float,
    typer.Option(
        parser=parse_duration,
        metavar="TIME",
        rich_help_panel=_FLEET,
        help="From wanting a server to its first request.",
    ),
]
ScaleDownAfter = Annotated[
    float,
    typer.Option(
        parser=parse_duration,
        metavar="TIME",
        rich_help_panel=_FLEET,
        help="So long must fewer have been enough before one goes.",
    ),
]
PrefillReplicas = Annotated[
    int,
    typer.Option(
        min=0,
        max=10_000,
        metavar="COUNT",
        rich_help_panel=_FLEET,
        help="So many servers compute prompts only, in place of --replicas.",
    ),
]
DecodeReplicas = Annotated[
    int,
    typer.Option(
        min=0, max=10_000, metavar="COUNT", rich_help_panel=_FLEET, help="And so many write the answers."
    ),
]
LinkRate = Annotated[
    float,
    typer.Option(
        parser=_parse_rate,
        metavar="RATE",
        rich_help_panel=_FLEET,
        help="At which one of the former sends K and V, such as 25GB/s or 200Gbit/s.",
    ),
]
LinkLatency = Annotated[
    float,
    typer.Option(
        parser=parse_duration,
        metavar="TIME",
        rich_help_panel=_FLEET,
        help="Until they begin to arrive.",
    ),
]
