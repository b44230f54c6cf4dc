"""`octavo bench`: measures a server, tells again what a record says, compares two. Knows arguments.

Exit codes: 0; 1 for an SLO that is not met or a regression; 2 for bad input; 3 for a run whose numbers cannot be
believed; 128 and the signal for one that was interrupted (what was measured until then is kept and reported).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from octavo.cli.bench_options import (
    GOAL,
    LOAD,
    OUTPUT,
    SERVER,
    Compat,
    Currency,
    Documents,
    DocumentTokens,
    Electricity,
    Hosted,
    Html,
    IdleWatts,
    Json,
    PricePerHour,
    Pue,
    SloText,
    Warmup,
    Watts,
)
from octavo.cli.options import parse_duration
from octavo.cli.panels import GroupWithDefault, PanelCommand
from octavo.errors import InvalidParameter

if TYPE_CHECKING:
    from octavo.bench.cost import Cost

__all__ = ["app"]

app = typer.Typer(
    cls=GroupWithDefault,
    help="Measure any OpenAI-compatible server from outside.",
    rich_markup_mode=None,
)

_EXAMPLES = """Examples:
  octavo bench http://127.0.0.1:8000 --workload chat --rate 4 --requests 200
  octavo bench http://127.0.0.1:8000 -w mine.toml --clients 32 -o run.json.gz --html run.html
  octavo bench http://127.0.0.1:8000 -w chat --sweep 1,2,4,8 --repeats 3 --html curve.html
  octavo bench http://127.0.0.1:8000 -w chat --slo 'ttft_p99<500ms,itl_p99<100ms' --search

Beside it:
  octavo bench report FILE   the same report from a record: another SLO, warm-up, prices, another tool's definitions
  octavo bench compare A B   whether B is slower than A, beyond what runs differ anyway (exit code 1 if it is)

Exit codes: 0 measured, and the SLO met; 1 not met; 2 bad input; 3 the run is not valid; 130 interrupted.
docs/bench.md explains every metric."""


@app.command(cls=PanelCommand, epilog=_EXAMPLES)
def run(
    context: typer.Context,
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="Where the server is, such as http://127.0.0.1:8000; /v1 may follow."
        ),
    ],
    *,
    workload: Annotated[
        str,
        typer.Option(
            "--workload",
            "-w",
            metavar="FILE|PRESET",
            rich_help_panel=LOAD,
            help="A .toml or .json file, a trace, or chat, autocomplete, voice, rag, batch or agent "
            "(octavo workload show PRESET).",
        ),
    ],
    rate: Annotated[
        float | None,
        typer.Option(
            metavar="RATE", rich_help_panel=LOAD, help="Sessions a second, in place of the workload's."
        ),
    ] = None,
    clients: Annotated[
        str | None,
        typer.Option(
            metavar="COUNT",
            rich_help_panel=LOAD,
            help="A closed loop: so many clients that each wait for their answers, in place of the workload's "
            "arrivals. Several with commas between them are a sweep.",
        ),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(
            min=1, max=10**12, metavar="COUNT", rich_help_panel=LOAD, help="At most so many, of each run."
        ),
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option(
            parser=parse_duration,
            metavar="TIME",
            rich_help_panel=LOAD,
            help="No session begins later than this, such as 5min.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="NUMBER",
            rich_help_panel=LOAD,
            help="Of the first run, in place of the workload's; each further run has the next.",
        ),
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(
            metavar="RATES",
            rich_help_panel=LOAD,
            help="The curve over several rates: 1,2,4,8, or 0.5:8:6 (six with equal ratios), or auto (up to where the "
            "server no longer keeps up).",
        ),
    ] = None,
    repeats: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1000,
            metavar="COUNT",
            rich_help_panel=LOAD,
            help="Runs of each load, each with a seed of its own: 1 by default, and 3 in a search.",
        ),
    ] = None,
    max_seconds: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            metavar="SECONDS",
            rich_help_panel=LOAD,
            help="After so long a run sends nothing more, and says that it was stopped.",
        ),
    ] = None,
    slo: SloText = None,
    search: Annotated[
        bool,
        typer.Option(
            "--search",
            rich_help_panel=GOAL,
            help="Search the highest rate that meets the SLO, by bisection with repeats.",
        ),
    ] = False,
    tolerance: Annotated[
        str,
        typer.Option(
            metavar="SHARE",
            rich_help_panel=GOAL,
            help="So near to each other are the rates, at the end, that meet the SLO and that do not.",
        ),
    ] = "5%",
    max_rate: Annotated[
        float | None,
        typer.Option(metavar="RATE", rich_help_panel=GOAL, help="The search tries no higher rate."),
    ] = None,
    warmup: Warmup = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", rich_help_panel=SERVER, help="Which model; the server's first by default."
        ),
    ] = None,
    api: Annotated[
        Literal["chat", "completions"] | None,
        typer.Option(
            rich_help_panel=SERVER,
            help="By default completions where the server has them, and chat for messages.",
        ),
    ] = None,
    prompts: Annotated[
        Literal["ids", "text"] | None,
        typer.Option(
            rich_help_panel=SERVER,
            help="Made-up prompts as token ids of exact length (by default, where the server takes them) or as words.",
        ),
    ] = None,
    key_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel=SERVER,
            help="The variable of the environment with the API key; by default OPENAI_API_KEY, where it is set.",
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME: VALUE",
            rich_help_panel=SERVER,
            help="A header for every request, as a gateway wants it; may be given several times. Its value is in no "
            "record.",
        ),
    ] = None,
    extra_body: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", rich_help_panel=SERVER, help='Fields for every request, such as {"top_p": 0.9}.'
        ),
    ] = None,
    exact_output: Annotated[
        bool,
        typer.Option(
            "--ignore-eos/--no-ignore-eos",
            rich_help_panel=SERVER,
            help="Ask for answers of exactly the workload's lengths, where the server can.",
        ),
    ] = True,
    timeout: Annotated[
        float | None,
        typer.Option(
            parser=parse_duration,
            metavar="TIME",
            rich_help_panel=SERVER,
            help="Of each request, from its sending; 10min by default.",
        ),
    ] = None,
    max_connections: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="COUNT",
            rich_help_panel=SERVER,
            help="At once; without it as many as there are requests.",
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", rich_help_panel=SERVER, help="Take any TLS certificate.")
    ] = False,
    metrics: Annotated[
        bool,
        typer.Option(
            "--metrics/--no-metrics",
            rich_help_panel=SERVER,
            help="Read the server's /metrics every second, where it has them.",
        ),
    ] = True,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            rich_help_panel=OUTPUT,
            help="The record with every event, as .json or .json.gz, for octavo bench report.",
        ),
    ] = None,
    html: Html = None,
    json: Json = False,
    compat: Compat = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", rich_help_panel=OUTPUT, help="Show no progress.")
    ] = False,
    price_per_hour: PricePerHour = None,
    currency: Currency = "USD",
    watts: Watts = None,
    idle_watts: IdleWatts = None,
    electricity_price: Electricity = None,
    pue: Pue = 1.0,
    documents_per_request: Documents = None,
    tokens_per_document: DocumentTokens = None,
    hosted: Hosted = None,
) -> None:
    """Measure an OpenAI-compatible server under a load that is described once and repeated exactly.

    In an open loop each request is sent at its time, whatever the server does: so the queue before a slow server is
    seen. How late the measuring process itself was is reported, and too much of it makes a run invalid.
    """
    from octavo.cli.bench_run import Asked, measure_server

    values = {name: context.params[name] for name in Asked.__dataclass_fields__ if name in context.params}
    raise typer.Exit(measure_server(Asked(**values, cost=_cost(context.params), given=_given(context))))


@app.command(cls=PanelCommand)
def report(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A record that octavo bench -o has written.")],
    *,
    slo: SloText = None,
    warmup: Warmup = None,
    html: Html = None,
    json: Json = False,
    compat: Compat = None,
    price_per_hour: PricePerHour = None,
    currency: Currency = "USD",
    watts: Watts = None,
    idle_watts: IdleWatts = None,
    electricity_price: Electricity = None,
    pue: Pue = 1.0,
    documents_per_request: Documents = None,
    tokens_per_document: DocumentTokens = None,
    hosted: Hosted = None,
) -> None:
    """Compute every number of a record again, and show them.

    The SLO and the warm-up are those of the run, where no others are given.
    """
    from octavo.cli.bench_run import report_again

    made = report_again(
        file, slo=slo, warmup_s=warmup, html=html, json=json, compat=compat or [], cost=_cost(context.params)
    )
    raise typer.Exit(made)


@app.command(cls=PanelCommand)
def compare(
    base: Annotated[Path, typer.Argument(metavar="A", help="A record: how it was.")],
    other: Annotated[Path, typer.Argument(metavar="B", help="A record: how it is.")],
    *,
    threshold: Annotated[
        str,
        typer.Option(
            metavar="SHARE", rich_help_panel=GOAL, help="A change of times and rates below this is none."
        ),
    ] = "2%",
    slo: SloText = None,
    anyway: Annotated[
        bool,
        typer.Option(
            "--anyway", rich_help_panel=GOAL, help="Compare what was measured with different workloads too."
        ),
    ] = False,
    html: Html = None,
    json: Json = False,
) -> None:
    """Tell whether B is slower than A, beyond what runs differ by anyway.

    Measure both with the same workload and --repeats 3 or more: from single runs no verdict follows. The exit code is
    1 for a regression, else 0.
    """
    from octavo.cli.bench_run import compare_records

    code = compare_records(base, other, threshold=threshold, slo=slo, anyway=anyway, html=html, json=json)
    raise typer.Exit(code)


def _cost(params: dict[str, Any]) -> Cost | None:
    """Of the prices that are given; None where none is. Raises InvalidParameter."""
    from octavo.bench.cost import Cost, HostedPrice

    names = {
        "price_per_hour": "price_per_hour",
        "watts": "watts_busy",
        "idle_watts": "watts_idle",
        "electricity_price": "electricity_price_per_kwh",
        "documents_per_request": "documents_per_request",
        "tokens_per_document": "tokens_per_document",
    }
    given = {ours: params[name] for name, ours in names.items() if params[name] is not None}
    hosted = tuple(HostedPrice.parse(text, params["currency"]) for text in params["hosted"] or ())
    if not given and not hosted:
        return None
    try:
        return Cost(**given, hosted=hosted, currency=params["currency"], pue=params["pue"])
    except InvalidParameter as error:
        said = str(error)
        for name, ours in {**names, "pue": "pue", "hosted": "hosted"}.items():
            said = re.sub(rf"\b{ours}\b", f"--{name.replace('_', '-')}", said)
        raise InvalidParameter(said, error.param) from None


_LOCAL = frozenset({"url", "workload", "output", "html", "json", "compat", "quiet", "key_env"})
"""What says nothing of how the server was measured, or has its own place in a record."""


def _given(context: typer.Context) -> dict[str, Any]:
    """The options that were given, by their names without dashes in front, to be given again."""
    found: dict[str, Any] = {}
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name in _LOCAL or source is None or source.name != "COMMANDLINE":
            continue
        value = context.params[name]
        flag = parameter.opts[0]
        if value is False and parameter.secondary_opts:
            flag, value = parameter.secondary_opts[0], True
        elif name in ("duration", "warmup", "timeout"):
            value = f"{value:g}s"
        elif name == "header":
            value = [f"{text.partition(':')[0]}: ***" for text in value]
        found[flag.removeprefix("--")] = value
    return found
