"""A model in this process, for commands that need no server. Knows the terminal, not what is asked."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from octavo.cli.progress import ByteProgress
from octavo.cli.pull import kernels_built

if TYPE_CHECKING:
    from octavo.llm import LLM

__all__ = ["local_model"]


def local_model(model: str, settings: dict[str, Any]) -> LLM:
    """Fetch `model` if need be, with progress on stderr, and load it. `settings`: EngineConfig's fields."""
    from octavo.llm import LLM

    if not kernels_built() and "backend" not in settings:
        settings = {**settings, "backend": "reference"}
        print(
            "warning: the C++ kernels were not built, so NumPy computes, some hundred times slower; "
            "install a C++ compiler and Octavo again.",
            file=sys.stderr,
        )
    with ByteProgress() as progress:
        return LLM(model, progress=progress, **settings)
