"""`octavo cost`: the sums of hosted and of own machines, with every step. Knows arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from octavo.cli.bench_options import share
from octavo.cli.options import parse_duration, parse_size
from octavo.cli.panels import GroupWithDefault, PanelCommand

__all__ = ["app"]

_EXAMPLES = """Examples:
  octavo cost --turns-per-day 500000 --input 400 --output 150 --machine-month 2400 \\
      --hosted large:in=3,out=12 --hosted small:in=0.25,out=0.80 --worksheet
  octavo cost --turns-per-day 50000 --input 1200 --output 300 --hardware l40s --capacity 4 --peak 3 \\
      --hosted gpt-4.1-mini --hosted claude-haiku-4.5

Beside it:
  octavo cost team     how busy a team keeps one machine, who waits, and how many requests fit in its memory
  octavo cost prices   the prices that are known, with their sources and dates

Prices change: each is shown with its source and date, and --prices FILE puts your own before them. docs/cost.md
explains every sum."""

app = typer.Typer(cls=GroupWithDefault, help="What answers cost, hosted or at home.", rich_markup_mode=None)

_ASKED, _HOSTED, _OWN, _TOGETHER, _OUTPUT = (
    "What is asked", "Hosted", "Machines of your own", "Both together", "What is shown"
)  # fmt: skip

_Turns = Annotated[float, typer.Option(metavar="COUNT", rich_help_panel=_ASKED, help="Requests a day.")]
_Input = Annotated[
    float, typer.Option("--input", metavar="TOKENS", rich_help_panel=_ASKED, help="Of a prompt, on average.")
]
_Output = Annotated[
    float,
    typer.Option("--output", metavar="TOKENS", rich_help_panel=_ASKED, help="Of an answer, on average."),
]
_Days = Annotated[float, typer.Option(metavar="DAYS", rich_help_panel=_ASKED, help="Of a month.")]
_Hours = Annotated[
    float,
    typer.Option(metavar="HOURS", rich_help_panel=_ASKED, help="Of a day, in which all of it is asked."),
]
_Peak = Annotated[
    float,
    typer.Option(metavar="FACTOR", rich_help_panel=_ASKED, help="The busiest time's rate over the mean."),
]
_Hosted = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME|PRICES",
        rich_help_panel=_HOSTED,
        help="A known name (octavo cost prices), or what a million tokens cost: NAME:in=3,out=12,cached=0.3,batch=50%; "
        "several may be given, the large one first.",
    ),
]
_Prices = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", rich_help_panel=_HOSTED, help="Prices of your own, as TOML: see docs/cost.md."
    ),
]
_Currency = Annotated[
    str, typer.Option(metavar="NAME", rich_help_panel=_OUTPUT, help="Of prices that you give.")
]
_Worksheet = Annotated[
    bool, typer.Option("--worksheet", rich_help_panel=_OUTPUT, help="Print every step of the sums.")
]
_Json = Annotated[
    bool,
    typer.Option("--json", rich_help_panel=_OUTPUT, help="Print one JSON object in place of the tables."),
]


def _share(text: str) -> float:
    return share("a share", text) if text.strip("0.%") else 0.0


@app.command(cls=PanelCommand, epilog=_EXAMPLES)
def run(
    context: typer.Context,
    *,
    turns_per_day: _Turns,
    input_tokens: _Input,
    output_tokens: _Output,
    cached: Annotated[
        float,
        typer.Option(
            metavar="TOKENS", rich_help_panel=_ASKED, help="Of a prompt: what a seller's cache has."
        ),
    ] = 0.0,
    cache_write: Annotated[
        float, typer.Option(metavar="TOKENS", rich_help_panel=_ASKED, help="Of a prompt: what it takes in.")
    ] = 0.0,
    days: _Days = 30.0,
    hours: _Hours = 24.0,
    peak: _Peak = 1.0,
    hosted: _Hosted = None,
    batch: Annotated[
        bool,
        typer.Option("--batch", rich_help_panel=_HOSTED, help="Answers may wait: with the discount for it."),
    ] = False,
    prices: _Prices = None,
    machine_month: Annotated[
        float | None,
        typer.Option(metavar="MONEY", rich_help_panel=_OWN, help="What one costs a month, all in all."),
    ] = None,
    rent: Annotated[
        float | None,
        typer.Option(metavar="MONEY", rich_help_panel=_OWN, help="Or: an hour of one accelerator."),
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", rich_help_panel=_OWN, help="Or: the rent, and the watts, that are known of it."
        ),
    ] = None,
    accelerators: Annotated[
        int, typer.Option(min=1, max=1024, metavar="COUNT", rich_help_panel=_OWN, help="In one machine.")
    ] = 1,
    purchase: Annotated[
        float | None, typer.Option(metavar="MONEY", rich_help_panel=_OWN, help="Or: what buying it costs.")
    ] = None,
    years: Annotated[
        float | None,
        typer.Option(metavar="YEARS", rich_help_panel=_OWN, help="Over which that is written off."),
    ] = None,
    residual: Annotated[
        float, typer.Option(metavar="MONEY", rich_help_panel=_OWN, help="What it is worth then.")
    ] = 0.0,
    operations: Annotated[
        float | None,
        typer.Option(
            metavar="MONEY", rich_help_panel=_OWN, help="A month of people, space and network, of each."
        ),
    ] = None,
    watts: Annotated[
        float | None, typer.Option(metavar="WATTS", rich_help_panel=_OWN, help="That it draws when busy.")
    ] = None,
    idle_watts: Annotated[
        float | None, typer.Option(metavar="WATTS", rich_help_panel=_OWN, help="That it draws when idle.")
    ] = None,
    electricity_price: Annotated[
        float | None,
        typer.Option(
            metavar="MONEY", rich_help_panel=_OWN, help="Of a kWh; leave it out where the rent has it."
        ),
    ] = None,
    pue: Annotated[
        float,
        typer.Option(
            metavar="RATIO", rich_help_panel=_OWN, help="All that the place draws over what machines draw."
        ),
    ] = 1.0,
    capacity: Annotated[
        float | None,
        typer.Option(
            metavar="RATE",
            rich_help_panel=_OWN,
            help="Turns a second that one answers within its targets: octavo bench --search or octavo simulate.",
        ),
    ] = None,
    machines: Annotated[
        int | None,
        typer.Option(
            min=1, max=100_000, metavar="COUNT", rich_help_panel=_OWN, help="So many, whatever is needed."
        ),
    ] = None,
    large_share: Annotated[
        float | None,
        typer.Option(
            parser=_share,
            metavar="SHARE",
            rich_help_panel=_TOGETHER,
            help="Of the turns, sent to the first hosted model at once, such as 10%.",
        ),
    ] = None,
    escalated: Annotated[
        float | None,
        typer.Option(
            parser=_share,
            metavar="SHARE",
            rich_help_panel=_TOGETHER,
            help="Of the turns, answered again by the first hosted model: a cascade.",
        ),
    ] = None,
    currency: _Currency = "USD",
    worksheet: _Worksheet = False,
    json: _Json = False,
) -> None:
    """What a month of answers costs: at sellers, on your own machines, and both together.

    What is not known is an error and never free. Every figure is a sum that --worksheet shows.
    """
    from octavo.cli.cost_run import Asked, compare_costs

    compare_costs(_asked(Asked, context))


@app.command(cls=PanelCommand)
def team(
    context: typer.Context,
    *,
    people: Annotated[float, typer.Option(metavar="COUNT", rich_help_panel=_ASKED, help="Who ask.")],
    questions: Annotated[
        float, typer.Option(metavar="COUNT", rich_help_panel=_ASKED, help="Of each of them a day.")
    ],
    input_tokens: _Input,
    output_tokens: _Output,
    hours: _Hours = 8.0,
    peak: _Peak = 1.0,
    days: _Days = 30.0,
    ttft: Annotated[
        float | None,
        typer.Option(parser=parse_duration, metavar="TIME", rich_help_panel=_OWN, help="To the first token."),
    ] = None,
    tpot: Annotated[
        float,
        typer.Option(
            parser=parse_duration, metavar="TIME", rich_help_panel=_OWN, help="For each token, as 40ms."
        ),
    ],
    convention: Annotated[
        Literal["gaps", "tokens"],
        typer.Option(
            rich_help_panel=_OWN,
            help="An answer of N tokens takes TTFT + (N - 1) TPOT (gaps), or TTFT + N TPOT (tokens).",
        ),
    ] = "gaps",
    at_once: Annotated[
        str, typer.Option(metavar="COUNTS", rich_help_panel=_OWN, help="Answers at once, to compare: 1,4.")
    ] = "1,4",
    memory: Annotated[
        int | None,
        typer.Option(
            parser=parse_size, metavar="SIZE", rich_help_panel=_OWN, help="Of the machine, as 16GiB."
        ),
    ] = None,
    utilization: Annotated[
        float,
        typer.Option(min=0.01, max=1, metavar="SHARE", rich_help_panel=_OWN, help="Of the memory in use."),
    ] = 0.9,
    reserved: Annotated[
        int | None,
        typer.Option(
            parser=parse_size, metavar="SIZE", rich_help_panel=_OWN, help="Of that, for all but the model."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", rich_help_panel=_OWN, help="Whose K and V are stored, as in octavo simulate."
        ),
    ] = None,
    weights: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SIZE",
            rich_help_panel=_OWN,
            help="Of the weights, as 8.5GB; several to compare. The model's at 16, 8 and 4 bits without it.",
        ),
    ] = None,
    hosted: _Hosted = None,
    prices: _Prices = None,
    currency: _Currency = "USD",
    worksheet: _Worksheet = False,
    json: _Json = False,
) -> None:
    """How busy a team keeps one machine, who waits for it, how many requests fit, and what it would cost hosted."""
    from octavo.cli.cost_run import AskedOfTeam, describe_team

    describe_team(_asked(AskedOfTeam, context))


@app.command("prices", cls=PanelCommand)
def show_prices(prices: _Prices = None, json: _Json = False) -> None:
    """Print the prices that are known: of hosted models and of rented accelerators, each with its source and date."""
    from octavo.cli.cost_run import list_prices

    list_prices(prices, json)


def _asked(kind: Any, context: typer.Context) -> Any:
    return kind(**{name: context.params[name] for name in kind.__dataclass_fields__})
