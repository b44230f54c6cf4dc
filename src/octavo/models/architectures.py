"""The architectures Octavo can run: the name in a model file and the function that compiles it."""

from __future__ import annotations

from collections.abc import Callable

from octavo.models.gguf import GGUFFile
from octavo.models.llama import compile_llama
from octavo.models.source import Source
from octavo.models.spec import ModelSpec

__all__ = ["ARCHITECTURES", "compile_model"]

ARCHITECTURES: dict[str, Callable[[Source, str], ModelSpec]] = {"llama": compile_llama}
"""`general.architecture` to compile(source, weights_hash)."""


def compile_model(file: GGUFFile, weights_hash: str) -> ModelSpec:
    """Compile a model file. Raises ModelError when it is incomplete, contradictory or of another family."""
    source = Source(file)
    architecture = source.text("general.architecture")
    compile_architecture = ARCHITECTURES.get(architecture)
    if compile_architecture is None:
        known = ", ".join(sorted(ARCHITECTURES))
        raise source.error(f"its architecture is {architecture!r}, Octavo supports {known}")
    return compile_architecture(source, weights_hash)
