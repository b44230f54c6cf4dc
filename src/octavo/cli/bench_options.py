"""Options of `octavo bench` and its commands, and how their values are read. Knows words, and measures nothing."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated

import typer

from octavo.cli.options import parse_duration
from octavo.errors import InvalidParameter

__all__ = [
    "COST",
    "GOAL",
    "LOAD",
    "OUTPUT",
    "SERVER",
    "Compat",
    "Currency",
    "DocumentTokens",
    "Documents",
    "Electricity",
    "Hosted",
    "Html",
    "IdleWatts",
    "Json",
    "PricePerHour",
    "Pue",
    "SloText",
    "Warmup",
    "Watts",
    "header",
    "numbers",
    "share",
]

SERVER, LOAD, GOAL, OUTPUT, COST = "The server", "The load", "The goal", "What is written", "Cost and energy"

SloText = Annotated[
    str | None,
    typer.Option(
        "--slo",
        metavar="BOUNDS",
        rich_help_panel=GOAL,
        help="What is fast enough, such as ttft_p99<500ms,itl_p99<100ms; docs/bench.md lists the names.",
    ),
]
Warmup = Annotated[
    float | None,
    typer.Option(
        parser=parse_duration,
        metavar="TIME",
        rich_help_panel=GOAL,
        help="What is sent before this is in no figure, such as 10s; without it a steady part is chosen.",
    ),
]
Html = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", rich_help_panel=OUTPUT, help="A page with curves, a timeline and all definitions."
    ),
]
Json = Annotated[
    bool, typer.Option("--json", rich_help_panel=OUTPUT, help="Print one JSON object in place of the tables.")
]
Compat = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TOOL",
        rich_help_panel=OUTPUT,
        help="vllm, guidellm or aiperf: "
        "print the numbers by its definitions too, with its names; may be given several times.",
    ),
]
PricePerHour = Annotated[
    float | None,
    typer.Option(
        metavar="MONEY", rich_help_panel=COST, help="What the machine costs an hour, without electricity."
    ),
]
Currency = Annotated[str, typer.Option(metavar="NAME", rich_help_panel=COST, help="Of all prices.")]
Watts = Annotated[
    float | None,
    typer.Option(metavar="WATTS", rich_help_panel=COST, help="What the machine draws when busy."),
]
IdleWatts = Annotated[
    float | None, typer.Option(metavar="WATTS", rich_help_panel=COST, help="What it draws when idle.")
]
Electricity = Annotated[
    float | None, typer.Option(metavar="MONEY", rich_help_panel=COST, help="Price of a kWh.")
]
Pue = Annotated[
    float,
    typer.Option(
        metavar="RATIO",
        rich_help_panel=COST,
        help="All that a data centre draws over what its machines draw.",
    ),
]
Documents = Annotated[
    float | None,
    typer.Option(
        metavar="COUNT",
        rich_help_panel=COST,
        help="Documents that a request stands for; 0.25: four make one.",
    ),
]
DocumentTokens = Annotated[
    float | None,
    typer.Option(metavar="TOKENS", rich_help_panel=COST, help="Or: input tokens that make a document."),
]
Hosted = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PRICES",
        rich_help_panel=COST,
        help="What a hosted API would ask for a million tokens: NAME:in=2.5,out=10,cached=0.25,batch=50%; may be given "
        "several times.",
    ),
]


_OURS = frozenset({"host", "content-length", "transfer-encoding", "connection", "authorization"})


def header(text: str) -> tuple[str, str]:
    """`Name: value` of a header. Raises InvalidParameter, and does not repeat a value."""
    name, colon, value = text.partition(":")
    name, value = name.strip(), value.strip()
    if not colon or not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name):
        raise InvalidParameter(
            "--header is not understood; write a name, a colon and a value, such as 'X-Team: red'."
        )
    if name.lower() in _OURS:
        hint = "; the key comes from --key-env" if name.lower() == "authorization" else ""
        raise InvalidParameter(f"--header is {name}, which octavo bench sets itself{hint}.")
    if not re.fullmatch(r"[\t\x20-\x7e\x80-\xff]*", value):
        raise InvalidParameter(f"--header {name} has characters that no header may have.")
    return name, value


def numbers(option: str, text: str) -> tuple[float, ...]:
    """`1,2,4,8`: each above 0 and once. Raises InvalidParameter."""
    try:
        found = tuple(float(piece) for piece in text.split(","))
    except ValueError:
        found = ()
    if not found:
        raise InvalidParameter(
            f"{option} is {text!r}; write numbers with commas between them, such as 1,2,4,8."
        )
    for one in found:
        if not (math.isfinite(one) and one > 0):
            raise InvalidParameter(f"{option} is {text!r}, and {one:g} is in it; each must be above 0.")
    if len(set(found)) < len(found):
        raise InvalidParameter(
            f"{option} is {text!r}, with a number twice; --repeats measures each several times."
        )
    return found


def share(option: str, text: str) -> float:
    """`5%` or `0.05`. Raises InvalidParameter."""
    try:
        found = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        found = math.nan
    if not 0 < found <= 1:
        raise InvalidParameter(f"{option} is {text!r}; write a share such as 5%, above 0 and at most 100%.")
    return found
