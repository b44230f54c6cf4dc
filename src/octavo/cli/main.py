"""The command line: which commands there are, and how an error is told. Knows no engine and no HTTP.

Commands import what they need when they run, so that `octavo --help` stays quick.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.exceptions import TyperException

import octavo
from octavo.bench.words import printable
from octavo.cli import bench, cost, key, route, workload
from octavo.cli.chat import chat
from octavo.cli.generate import generate
from octavo.cli.output import give_up_output
from octavo.cli.panels import PanelCommand
from octavo.cli.plan import PLAN_EXAMPLES, plan
from octavo.cli.pull import pull
from octavo.cli.replay import replay
from octavo.cli.route_serve import SERVE_EXAMPLES, serve_tiers
from octavo.cli.serve import serve
from octavo.cli.simulate import SIMULATE_EXAMPLES, simulate
from octavo.cli.values import QuickCommand, QuickGroup
from octavo.errors import ClientError, OctavoError

__all__ = ["app", "run"]

app = typer.Typer(
    name="octavo",
    cls=QuickGroup,
    help="Serve large language models on your own machine.",
    rich_markup_mode=None,  # plain help can be searched and copied, and costs no import of rich
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (serve, chat, generate, pull, replay):
    app.command(cls=QuickCommand)(command)
app.command(cls=PanelCommand, epilog=SIMULATE_EXAMPLES)(simulate)
app.command(cls=PanelCommand, epilog=PLAN_EXAMPLES)(plan)
app.add_typer(bench.app, name="bench")
app.add_typer(cost.app, name="cost")
app.add_typer(key.app, name="key")
route.app.command("serve", cls=PanelCommand, epilog=SERVE_EXAMPLES)(serve_tiers)
app.add_typer(route.app, name="route")
app.add_typer(workload.app, name="workload")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"octavo {octavo.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    pass


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return 0, 1 (our fault or the machine's), 2 (the caller's) or 130 (interrupted).

    An error is one line on stderr. OCTAVO_TRACEBACK=1 shows where it came from.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    try:
        code = typer.main.get_command(app).main(arguments, "octavo", standalone_mode=False) or 0
        sys.stdout.flush()
        return int(code)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        give_up_output()  # its reader has gone
        return 1
    except Exception as error:
        if os.environ.get("OCTAVO_TRACEBACK"):
            raise
        code, message = _explain(error)
        print("error:", " ".join(printable(message).split()), file=sys.stderr)
        try:
            sys.stdout.flush()
        except OSError:
            give_up_output()
        return code


_CALLERS = {
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path",
    errno.ELOOP: "check the path",
    errno.ENAMETOOLONG: "check the path",
    errno.EISDIR: "give a file",
    errno.EACCES: "check its permissions",
    errno.EPERM: "check its permissions",
    errno.EROFS: "choose another place",
    errno.ENXIO: "choose another file",
}
"""What is wrong with a path that was typed, and what to do. Other errors are the machine's."""


def _explain(error: Exception) -> tuple[int, str]:
    """The exit code and the sentence for an error that ended a command."""
    match error:
        case TyperException():
            context = getattr(error, "ctx", None)
            hint = f" (see {context.command_path} --help)" if context is not None else ""
            return 2, error.format_message() + hint
        case OctavoError():
            return 2 if isinstance(error, ClientError) else 1, str(error)
        case OSError(strerror=str(reason), filename=None):
            return 1, f"{reason}."
        case OSError(strerror=str(reason), filename=path):
            remedy = _CALLERS.get(error.errno or 0)
            return (2, f"{path}: {reason}; {remedy}.") if remedy else (1, f"{path}: {reason}.")
        case MemoryError():
            return 1, "this machine has not enough memory; try a smaller --kv-memory or a smaller model."
    kind = type(error).__name__
    return 1, f"{kind}: {error} (a fault in octavo; run again with OCTAVO_TRACEBACK=1 and report it)."
