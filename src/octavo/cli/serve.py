"""`octavo serve`: a model behind an OpenAI-compatible API. Knows arguments; the server is in `server/`."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from octavo.cli.access import KEY_VARIABLE, access_of, rereading
from octavo.cli.config_file import config_defaults
from octavo.cli.options import engine_options, parse_port, parse_size
from octavo.cli.pull import MODEL_HELP, fetch, with_backend, with_draft
from octavo.config import DEFAULT_POOLING, Pooling
from octavo.telemetry.logs import FORMAT_VARIABLE, LEVEL_VARIABLE, LogFormat, LogLevel, configure

if TYPE_CHECKING:
    from octavo.engine.messages import EngineInfo
    from octavo.memory.accounting import Report
    from octavo.server.edge import TlsFiles

__all__ = ["serve"]

_KEYFILE_PASSWORD = "OCTAVO_SSL_KEYFILE_PASSWORD"
_SECRET_VARIABLES = (KEY_VARIABLE, _KEYFILE_PASSWORD, "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


@engine_options
def serve(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help=MODEL_HELP)] = "smollm2",
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            is_eager=True,
            callback=config_defaults,
            metavar="FILE",
            help="Options from a TOML, YAML or JSON file: their names without dashes in front, and model. The command "
            "line and the environment win over it.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="HOST", help="The address to listen on; 0.0.0.0 lets other machines in.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(parser=parse_port, metavar="PORT", help="The port; 0 takes any free one.")
    ] = 8000,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            envvar=KEY_VARIABLE,
            metavar="KEY",
            help="A key that clients must send as Authorization: Bearer; may be given several times. Better set "
            "in the environment (several keys with spaces between them): arguments can be seen by other users.",
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A file of keys, as hashes, and of what each may use: octavo key new FILE NAME makes one. SIGHUP "
            "has it read again.",
        ),
    ] = None,
    cache_scope: Annotated[
        Literal["key", "server"],
        typer.Option(
            help="With several keys: each finds only what its own requests computed, or all find all."
        ),
    ] = "key",
    key_profile: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NUMBER=PROFILE",
            help="The profile of requests with the first, second … key that name none, such as 2=batch.",
        ),
    ] = None,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help='What clients put into "model"; the default is MODEL as given. May be given several times: several '
            "names for the one model.",
        ),
    ] = None,
    max_requests_per_key: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="COUNT",
            help="Requests of one key that may run at once; one beyond is answered with 429 and Retry-After.",
        ),
    ] = None,
    requests_per_minute: Annotated[
        int | None, typer.Option(min=1, metavar="COUNT", help="Requests of one key in a minute.")
    ] = None,
    tokens_per_minute: Annotated[
        int | None,
        typer.Option(min=1, metavar="COUNT", help="Tokens of one key in a minute, of prompts and answers."),
    ] = None,
    metrics_without_key: Annotated[
        bool, typer.Option("--metrics-without-key", help="/metrics wants no key, for a Prometheus server.")
    ] = False,
    max_queued_requests: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="COUNT",
            help="Sequences that may wait for a slot; a request beyond is answered with 503 and Retry-After.",
        ),
    ] = None,
    max_queued_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-queued-tokens",
            "--max-num-queued-tokens",
            min=0,
            metavar="COUNT",
            help="Tokens of prompts that may wait for their answers to begin; a request beyond is answered with 503.",
        ),
    ] = None,
    max_connections: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="COUNT",
            help="Connections at once. Beyond, one that asks nothing is closed for a new one, or that gets 503.",
        ),
    ] = None,
    stream_buffer: Annotated[
        int,
        typer.Option(
            parser=parse_size,
            metavar="SIZE",
            help="Tokens that may wait in memory for the reader of a stream; with more, it is cut off.",
        ),
    ] = "4MiB",  # type: ignore[assignment]
    send_timeout: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="A client that takes nothing of its answer for so long is cut off; 0 waits for ever.",
        ),
    ] = 60.0,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Refuse requests with fields that nobody knows; by default the log names them."
        ),
    ] = False,
    pooling: Annotated[
        Pooling,
        typer.Option(
            help="Which hidden states stand for a text at /v1/embeddings, where the request does not say."
        ),
    ] = DEFAULT_POOLING,
    drain_timeout: Annotated[
        float,
        typer.Option(
            min=0, metavar="SECONDS", help="How long running requests may take to finish at the end."
        ),
    ] = 30.0,
    data_dir: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Where files, batches and stored answers are kept; octavo in $XDG_DATA_HOME, or in ~/.local/share.",
        ),
    ] = None,
    request_timeout: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            max=86_400,
            metavar="SECONDS",
            help="How long a request may take from its arrival to the end of its answer; its own timeout may be less.",
        ),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            "--cors-origin",
            "--allowed-origins",
            metavar="ORIGIN",
            help="A site whose pages may ask from a browser, such as https://example.org; several times for several, "
            "* for all.",
        ),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Without keys: a further name that requests may be addressed to, such as that of a proxy; several "
            "times for several, * for any.",
        ),
    ] = None,
    ssl_certfile: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Speak https, with this certificate (PEM, the chain behind it)."),
    ] = None,
    ssl_keyfile: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Its private key, if that is in a file of its own; the password of an encrypted one is read from "
            f"the environment: {_KEYFILE_PASSWORD}.",
        ),
    ] = None,
    ssl_ca_certs: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Serve only clients with a certificate that one of these has signed."
        ),
    ] = None,
    log_format: Annotated[
        LogFormat,
        typer.Option(
            envvar=FORMAT_VARIABLE, help="Log lines for people, or a JSON object in each for machines."
        ),
    ] = "text",
    log_level: Annotated[
        LogLevel, typer.Option(envvar=LEVEL_VARIABLE, help="The least that is logged.")
    ] = "info",
    access_log: Annotated[
        bool,
        typer.Option(
            "--access-log/--no-access-log",
            " /--disable-uvicorn-access-log",
            help="A line in the log for each request, without prompts and answers.",
        ),
    ] = True,
    report: Annotated[
        bool,
        typer.Option("--report", help="At the end, print what the KV memory was good for (also at /report)."),
    ] = False,
    settings: dict[str, Any],
) -> None:
    """Serve MODEL: an OpenAI-compatible API, downloaded and converted first if need be."""
    from octavo.config import EngineConfig
    from octavo.server.access import keys_of
    from octavo.server.edge import Edge, check_hosts, check_origins
    from octavo.server.run import run
    from octavo.telemetry.stderr import unblock_stderr

    del config  # click has read it: see cli/config_file
    access = access_of(context.params)
    keys_of(access)  # before a download

    edge = Edge(
        origins=check_origins(cors_origin or ()),
        tls=_tls_files(ssl_certfile, ssl_keyfile, ssl_ca_certs),
        request_timeout_s=request_timeout,
        access_log=access_log,
        hosts=check_hosts(allowed_host or ()),
    )

    unblock_stderr()
    configure(log_format, log_level)
    os.environ |= {FORMAT_VARIABLE: log_format, LEVEL_VARIABLE: log_level}  # for the engine's process
    settings = with_backend(settings)
    if settings.get("cache_disk") == "":
        raise typer.BadParameter("it is empty; name a folder.", param_hint="--cache-disk")
    for name in ("step_log", "cache_disk"):
        if name in settings:
            settings[name] = str(Path(settings[name]).absolute())
    if data_dir == "":
        raise typer.BadParameter("it is empty; name a folder.", param_hint="--data-dir")
    if "" in (served_model_name or ()):
        raise typer.BadParameter("it is empty; give a name.", param_hint="--served-model-name")
    name, *aliases = dict.fromkeys(served_model_name or [model])
    settings, _draft = with_draft(settings)
    stored = fetch(model)  # both kept until the end: an engine that is restarted needs the folders again
    for variable in _SECRET_VARIABLES:  # read by now; the engine and what checks grammars need none of them
        os.environ.pop(variable, None)
    run(
        EngineConfig(model_dir=str(stored.dir), **settings),
        model_name=name,
        aliases=aliases,
        host=host,
        port=port,
        access=access,
        reread=rereading(context),
        max_connections=max_connections,
        stream_buffer_bytes=stream_buffer,
        send_timeout_s=send_timeout,
        strict=strict,
        pooling=pooling,
        drain_timeout_s=drain_timeout,
        data_dir=None if data_dir is None else str(Path(data_dir).absolute()),
        edge=edge,
        on_end=_print_report if report else None,
        on_ready=lambda address, info: _announce(address, info, name, keyed=access.keyed),
    )


def _tls_files(certfile: str | None, keyfile: str | None, ca_certs: str | None) -> TlsFiles | None:
    """Checked, so that a wrong file is told before a download."""
    from octavo.server.edge import TlsFiles
    from octavo.server.tls import tls_context

    if certfile is None:
        for option, given in (("--ssl-keyfile", keyfile), ("--ssl-ca-certs", ca_certs)):
            if given is not None:
                raise typer.BadParameter("it needs --ssl-certfile.", param_hint=option)
        return None
    files = TlsFiles(
        certfile=certfile, keyfile=keyfile, password=os.environ.get(_KEYFILE_PASSWORD), ca_certs=ca_certs
    )
    tls_context(files)
    return files


def _print_report(report: Report | None) -> None:
    from rich.console import Console
    from rich.table import Table

    if report is None:
        print("Nothing was computed, so there is nothing to report.")
        return
    table = Table(title=f"{report.policy}, {report.allocator}", show_header=False)
    shares = {
        "KV memory held, of all": report.utilization,
        "… of it without a token (internal waste)": report.internal_waste,
        "free, but not side by side where it was needed (external waste)": report.external_waste,
        "tokens stored twice or more (duplicates)": report.duplicate_waste,
        "saved by sharing": report.sharing_saved,
        "prompt tokens found in the prefix cache": report.prefix_hit_rate,
    }
    for name, share in shares.items():
        table.add_row(name, f"{100 * share:.1f} %")
    table.add_section()
    table.add_row("sequences at once, mean and most", f"{report.running:.1f}, {report.most_running}")
    table.add_row("slots kept by sequences that had ended, mean", f"{report.idle_slots:.1f}")
    table.add_row("steps, tokens in each", f"{report.steps}, {report.step_tokens:.1f}")
    table.add_row("time in steps", f"{report.busy_s:.1f} s")
    table.add_row("preemptions", str(report.preemptions))
    Console().print(table)


def _announce(address: str, info: EngineInfo, model: str, *, keyed: bool) -> None:
    """Where it is, what it holds, and a request to try."""
    tokens = info.num_blocks * info.block_size
    key = ' -H "Authorization: Bearer $OCTAVO_API_KEY"' if keyed else ""
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": "What is an octavo?"}]}
    print(
        f"Octavo serves {model} on {address} ({info.backend}, {info.threads} threads, KV of {tokens:,} tokens)"
    )
    print(
        f"curl -N {address}/v1/chat/completions -H 'Content-Type: application/json'{key} "
        f"-d {shlex.quote(json.dumps(body))}",
        flush=True,
    )
