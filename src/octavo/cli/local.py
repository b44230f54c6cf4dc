"""A model in this process, for commands that need no server. Knows the terminal, not what is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octavo.cli.progress import ByteProgress
from octavo.cli.pull import with_backend

if TYPE_CHECKING:
    from octavo.llm import LLM

__all__ = ["local_model"]


def local_model(model: str, settings: dict[str, Any]) -> LLM:
    """Fetch `model` if need be, with progress on stderr, and load it. `settings`: EngineConfig's fields."""
    from octavo.llm import LLM

    settings = with_backend(settings)
    with ByteProgress() as progress:
        return LLM(model, progress=progress, **settings)
