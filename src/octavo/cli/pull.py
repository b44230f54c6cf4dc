"""`octavo pull`, and how every command gets its model. Knows what may be typed, not where models lie."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.progress import ByteProgress

if TYPE_CHECKING:
    from octavo.models.store import StoredModel

__all__ = ["MODEL_HELP", "fetch", "kernels_built", "pull"]

MODEL_HELP = "smollm2, the path of a GGUF file, or hf:owner/name/file.gguf."


def kernels_built() -> bool:
    """Whether the C++ kernels were compiled when Octavo was installed."""
    return importlib.util.find_spec("octavo._kernels") is not None


def fetch(model: str) -> StoredModel:
    """The model, downloaded and converted if it was not yet, with progress on stderr. Raises ModelError."""
    from octavo.models.store import open_model

    with ByteProgress() as progress:
        return open_model(model, progress=progress, packed=kernels_built())


def pull(model: Annotated[str, typer.Argument(help=MODEL_HELP)] = "smollm2") -> None:
    """Download a model, verify it, convert it, and print the folder where it is kept."""
    print(fetch(model).dir)
