"""Octavo serves large language models. The public names; each is imported when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.errors import ClientError, OctavoError, ServerError
    from octavo.llm import LLM
    from octavo.sampling.grammar import Grammar
    from octavo.sampling.params import SamplingParams

__all__ = ["LLM", "ClientError", "Grammar", "OctavoError", "SamplingParams", "ServerError", "__version__"]

__version__ = "0.1.0"

_HOMES = {
    "LLM": "octavo.llm",
    "ClientError": "octavo.errors",
    "Grammar": "octavo.sampling.grammar",
    "OctavoError": "octavo.errors",
    "SamplingParams": "octavo.sampling.params",
    "ServerError": "octavo.errors",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
