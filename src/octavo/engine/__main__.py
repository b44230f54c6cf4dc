"""`python -m octavo.engine --fd N`: the engine process. Knows only how to begin: signals and the socket."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import os
import signal
import socket
import sys

from octavo.config import EngineConfig
from octavo.engine.heartbeat import Heartbeat
from octavo.engine.process import Steppable, bind_to_parent, name_process, run
from octavo.telemetry.logs import configure_child
from octavo.telemetry.stderr import unblock_stderr

__all__ = ["main"]

_logger = logging.getLogger("octavo.engine")


def main() -> int:
    """Serve the parent on the inherited socket until it goes away; the value is the exit code."""
    # The terminal's ^C and a service manager's SIGTERM reach every process of the group. Draining needs a
    # living engine, so the parent decides, and closing its end of the socket is the message. SIGHUP is the parent's
    # word for reading its settings again.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    unblock_stderr()
    parser = argparse.ArgumentParser(prog="python -m octavo.engine", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="the inherited socket's file descriptor")
    parser.add_argument("--heartbeat", type=int, help="the descriptor of the memory that both look at")
    parser.add_argument("--parent", type=int, default=os.getppid(), help="whose end is ours: a process id")
    arguments = parser.parse_args()
    bind_to_parent(arguments.parent)
    configure_child()
    name_process("octavo-spare")  # until it is told what to load
    _preload()
    with socket.socket(fileno=arguments.fd) as parent:
        try:
            return run(parent, lambda config: _build(config, Heartbeat(arguments.heartbeat)))
        except Exception:
            _logger.critical("the engine ends", exc_info=True)
            return 1


def _preload() -> None:
    """Import what any engine needs, before it is known which: a parent may keep this process for later."""
    with contextlib.suppress(Exception):  # `_build` meets it again, and can tell
        importlib.import_module("octavo.engine.build")
        importlib.import_module("octavo.backends.native")
        importlib.import_module("octavo._kernels")


def _build(config: EngineConfig, heartbeat: Heartbeat) -> Steppable:
    from octavo.engine.build import (
        build_engine,
    )  # heavy: a failed import is a failed start, told to the parent

    return build_engine(config, heartbeat)


if __name__ == "__main__":
    sys.exit(main())
