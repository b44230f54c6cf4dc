"""`python -m tests.server.serve JSON`: a server in a process of its own, as `octavo serve` runs it."""

from __future__ import annotations

import os
import sys
from typing import Any

import msgspec

from octavo.config import EngineConfig
from octavo.errors import OctavoError
from octavo.server.access import Access
from octavo.server.edge import Edge
from octavo.server.run import run
from octavo.telemetry.logs import FORMAT_VARIABLE, LEVEL_VARIABLE, configure
from octavo.telemetry.stderr import unblock_stderr


def main(settings: dict[str, Any]) -> int:
    unblock_stderr()
    config = msgspec.convert(settings.pop("engine"), EngineConfig)
    if log := settings.pop("log", None):
        configure(*log)
        os.environ[FORMAT_VARIABLE], os.environ[LEVEL_VARIABLE] = log
    edge = msgspec.convert(settings.pop("edge", {}), Edge)
    access = msgspec.convert(settings.pop("access", {}), Access)
    try:
        run(
            config,
            **settings,
            access=access,
            edge=edge,
            on_ready=lambda address, _: print(address, flush=True),
        )
    except OctavoError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(msgspec.json.decode(sys.argv[1])))
