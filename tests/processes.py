"""The processes of a server, found from outside."""

from __future__ import annotations

import contextlib
from pathlib import Path

__all__ = ["children_of", "engine_of"]


def children_of(pid: int) -> list[int]:
    """The engine, a spare one, checkers of grammars."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def engine_of(pid: int) -> int:
    """The engine process of the server `pid`; there is one."""
    found = []
    for child in children_of(pid):
        with contextlib.suppress(OSError):  # it has just ended
            if Path(f"/proc/{child}/comm").read_text() == "octavo-engine\n":
                found.append(child)
    [engine] = found
    return engine
