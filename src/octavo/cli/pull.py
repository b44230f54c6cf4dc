"""`octavo pull`, and how every command gets its model. Knows what may be typed, not where models lie."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli.progress import ByteProgress

if TYPE_CHECKING:
    from octavo.models.store import StoredModel

__all__ = ["MODEL_HELP", "fetch", "kernels_built", "pull", "with_backend", "with_draft"]

MODEL_HELP = "smollm2, the path of a GGUF file, or hf:owner/name/file.gguf."


def kernels_built() -> bool:
    """Whether the C++ kernels were compiled when Octavo was installed."""
    return importlib.util.find_spec("octavo._kernels") is not None


def with_backend(settings: dict[str, Any]) -> dict[str, Any]:
    """`settings` (EngineConfig's fields) with a backend that can run here; NumPy's comes with a warning."""
    if kernels_built() or "backend" in settings:
        return settings
    print(
        "warning: the C++ kernels were not built, so NumPy computes, some hundred times slower; "
        "install a C++ compiler and Octavo again.",
        file=sys.stderr,
    )
    return {**settings, "backend": "reference"}


def fetch(model: str) -> StoredModel:
    """The model, downloaded and converted if it was not yet, with progress on stderr. Raises ModelError."""
    from octavo.models.store import open_model

    with ByteProgress() as progress:
        return open_model(model, progress=progress, packed=kernels_built())


def with_draft(settings: dict[str, Any]) -> tuple[dict[str, Any], StoredModel | None]:
    """`settings` with the folder of the draft model that they name, and that model. Raises Model-, SettingsError."""
    if "speculation" not in settings:
        return settings, None
    from octavo.speculation.registry import with_draft_folder

    speculation, draft = with_draft_folder(settings["speculation"], fetch)
    return {**settings, "speculation": speculation}, draft


def pull(model: Annotated[str, typer.Argument(help=MODEL_HELP)] = "smollm2") -> None:
    """Download a model, verify it, convert it, and print the folder where it is kept."""
    print(fetch(model).dir)
