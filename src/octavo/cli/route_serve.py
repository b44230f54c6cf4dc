"""`octavo route serve`: the gateway in front of tiers. Knows arguments; the gateway is in routing/ and server/."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.options import parse_port
from octavo.telemetry.logs import FORMAT_VARIABLE, LEVEL_VARIABLE, LogFormat, LogLevel, configure

if TYPE_CHECKING:
    from octavo.routing.decider import Decider
    from octavo.routing.tiers import Tiers

__all__ = ["SERVE_EXAMPLES", "serve_tiers"]

KEY_VARIABLE = "OCTAVO_API_KEY"

SERVE_EXAMPLES = """
Examples:
  octavo route serve tiers.toml                        on 127.0.0.1:8080
  octavo route serve tiers.toml --check                is everything right in it? nothing is started
  octavo route serve tiers.toml --api-key-file keys    clients need a key, which rules may name
"""


def serve_tiers(
    tiers: Annotated[
        Path,
        typer.Argument(
            metavar="TIERS.toml", help="The file of tiers; docs/routing-gateway.md says what may be in it."
        ),
    ],
    *,
    host: Annotated[
        str, typer.Option(metavar="HOST", help="The address to listen on; 0.0.0.0 lets other machines in.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(parser=parse_port, metavar="PORT", help="The port; 0 takes any free one.")
    ] = 8080,
    check: Annotated[
        bool, typer.Option("--check", help="Read the file, say what is in it, and end.")
    ] = False,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            envvar=KEY_VARIABLE,
            metavar="KEY",
            help="A key that clients must send as Authorization: Bearer; better set in the environment (several with "
            "spaces between them).",
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A file of keys, as hashes: octavo key new FILE NAME makes one. Rules name them.",
        ),
    ] = None,
    metrics_without_key: Annotated[
        bool, typer.Option("--metrics-without-key", help="/metrics wants no key, for a Prometheus server.")
    ] = False,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="A site whose pages may ask from a browser; * for all."),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Without keys: a further name that requests may be addressed to."),
    ] = None,
    max_connections: Annotated[
        int | None, typer.Option(min=1, metavar="COUNT", help="Connections of clients at once.")
    ] = None,
    drain_timeout: Annotated[
        float,
        typer.Option(
            min=0, metavar="SECONDS", help="How long running requests may take to finish at the end."
        ),
    ] = 30.0,
    log_format: Annotated[
        LogFormat,
        typer.Option(envvar=FORMAT_VARIABLE, help="Log lines for people, or JSON objects for machines."),
    ] = "text",
    log_level: Annotated[
        LogLevel, typer.Option(envvar=LEVEL_VARIABLE, help="The least that is logged.")
    ] = "info",
    access_log: Annotated[
        bool, typer.Option("--access-log/--no-access-log", help="A line in the log for each request.")
    ] = True,
) -> None:
    """Serve an OpenAI-compatible API that sends each request to one of several servers, the tiers."""
    from octavo.routing.tier_file import read_tiers
    from octavo.server.access import Access
    from octavo.server.edge import Edge, check_hosts, check_origins
    from octavo.server.gateway_run import gateway_keys, run_gateway
    from octavo.telemetry.stderr import unblock_stderr

    given = tuple(api_key or ())
    if not given and KEY_VARIABLE in os.environ:  # set and empty: a key was meant
        given = ("",)
    access = Access(
        api_keys=given,
        key_file=None if api_key_file is None else str(api_key_file.absolute()),
        metrics_without_key=metrics_without_key,
    )
    edge = Edge(
        origins=check_origins(cors_origin or ()),
        hosts=check_hosts(allowed_host or ()),
        access_log=access_log,
    )
    found = read_tiers(tiers, os.environ, keys=gateway_keys(access))
    decider: Decider | None = None
    if found.deciding is not None:
        from octavo.routing.policy_decider import PolicyDecider
        from octavo.routing.versioned_decider import VersionedDecider

        path = tiers.parent / found.deciding.policy
        decider = VersionedDecider(found, path) if path.is_dir() else PolicyDecider.of(found, tiers.parent)
    if check:
        _show(found)
        return
    unblock_stderr()
    configure(log_format, log_level)
    run_gateway(
        found,
        decider=decider,
        folder=tiers.parent,
        host=host,
        port=port,
        access=access,
        edge=edge,
        max_connections=max_connections,
        drain_timeout_s=drain_timeout,
        on_ready=lambda address, faults: _announce(address, faults, keyed=access.keyed),
    )


def _show(tiers: Tiers) -> None:
    from rich.console import Console
    from rich.table import Table

    who = f"{tiers.deciding.policy} decides" if tiers.deciding else f"the default is {tiers.general.default}"
    table = Table(title=f"{len(tiers.all)} tier{'s' * (len(tiers.all) != 1)}, {who}")
    for name in ("tier", "where", "model", "context", "abilities", "price in, cached, out", "then"):
        table.add_column(name)
    for tier in tiers.all:
        price = tier.price
        base = tier.base
        table.add_row(
            tier.name,
            f"{base.url}{', local' if tier.local else ''}",
            tier.model,
            "?" if tier.context is None else f"{tier.context:,}",
            ", ".join(sorted(tier.abilities)),
            "not known"
            if price is None
            else ", ".join(
                "–" if one is None else f"{one:g}" for one in (price.input, price.cached, price.output)
            ),
            ", ".join(tier.fallbacks),
        )
    Console().print(table)


def _announce(address: str, faults: Mapping[str, str | None], *, keyed: bool) -> None:
    """Where it is, and which tiers are well."""
    print(f"Octavo's gateway is on {address}/v1{', for those with a key' if keyed else ''}")
    for name, fault in faults.items():
        print(f"  {name}: {'there' if fault is None else fault}")
    print(end="", flush=True)
