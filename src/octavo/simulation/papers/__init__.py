"""Published experiments, run again by the scheduler that serves: what was published, what is simulated, and why they
differ. Each paper is a module. Knows no terminal."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from importlib import import_module
from types import ModuleType

from octavo.errors import InvalidParameter
from octavo.simulation.papers.table import Result
from octavo.simulation.papers.trial import Progress

__all__ = ["PAPERS", "parts", "reproduce"]

PAPERS = {
    "vllm": "PagedAttention: KV memory, requests in flight and sustained rates (Kwon et al. 2023)",
    "sarathi": "Sarathi-Serve: capacity under a limit for the time between tokens (Agrawal et al. 2024)",
    "orca": "Orca: iteration-level scheduling against static batches (Yu et al. 2022)",
}
"""Names, and a line each."""


def reproduce(name: str, *, quick: bool = False, told: Progress = lambda _: None) -> Result:
    """A paper's experiments. `told` is called with what begins. Raises InvalidParameter for an unknown paper."""
    run: Callable[[bool, Progress], Result] = _module(name).reproduce
    return run(quick, told)


def parts(name: str, quick: bool) -> int:
    """How often `told` will be called. Raises InvalidParameter for an unknown paper."""
    count: Callable[[bool], int] = _module(name).parts
    return count(quick)


def _module(name: str) -> ModuleType:
    if name not in PAPERS:
        near = difflib.get_close_matches(name.lower(), PAPERS, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(PAPERS)}."
        raise InvalidParameter(f"paper {name!r} is unknown; {hint}")
    return import_module(f"{__name__}.{name}")
