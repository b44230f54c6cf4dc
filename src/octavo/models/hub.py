"""Fetches a file from the Hugging Face hub with `huggingface_hub` (the extra `hub`). Knows no file format."""

from __future__ import annotations

import os
import re
from importlib import import_module
from pathlib import Path
from typing import Any

from octavo.errors import ModelError
from octavo.models.cache import Progress

__all__ = ["hub_file"]

_REF = re.compile(r"hf:(?P<repo>[\w.-]+/[\w.-]+)/(?P<file>[^\s]+\.gguf)")


def hub_file(ref: str, cache: Path, progress: Progress | None = None) -> Path:
    """The file that `hf:owner/name/file.gguf` means, from `cache` or downloaded into it (the library resumes
    and verifies). `HF_ENDPOINT` and `HF_TOKEN` work as everywhere. Raises ModelError.
    """
    match = _REF.fullmatch(ref)
    if match is None:
        raise ModelError(f"'{ref}' is no file on the hub; write hf:owner/name/file.gguf.")
    repo, file = match["repo"], match["file"]
    cached = _cached(cache, repo, file)
    if cached is not None:
        return cached
    try:
        from huggingface_hub import errors, hf_hub_download
    except ImportError as error:
        raise ModelError(
            f"'{ref}' needs the package huggingface_hub, which is missing; run pip install 'octavo[hub]'."
        ) from error
    try:
        return Path(
            hf_hub_download(
                repo,
                file,
                cache_dir=cache,
                endpoint=os.environ.get("HF_ENDPOINT"),
                tqdm_class=_progress_class(progress, file),
            )
        )
    except errors.GatedRepoError as error:
        raise ModelError(
            f"'{repo}' is open only to accounts that accepted its terms; set HF_TOKEN."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError(
            f"The hub has no '{repo}', or it is private; check the name or set HF_TOKEN."
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise ModelError(
            f"'{ref}' cannot be downloaded: the hub cannot be reached; check the network."
        ) from error
    except errors.EntryNotFoundError as error:
        raise ModelError(f"'{repo}' on the hub has no file '{file}'; check the name.") from error
    except (errors.HfHubHTTPError, errors.HFValidationError, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(f"'{ref}' cannot be downloaded ({reason}); try again.") from error


def _cached(cache: Path, repo: str, file: str) -> Path | None:
    """A file fetched before, found by the library's documented folder layout without importing it (0.4 s)."""
    folder = cache / f"models--{repo.replace('/', '--')}"
    try:
        commit = (folder / "refs" / "main").read_text().strip()
    except OSError:
        return None
    path = folder / "snapshots" / commit / file
    return path if path.is_file() else None


def _progress_class(progress: Progress | None, file: str) -> type[Any] | None:
    """A progress bar that draws nothing and tells `progress`."""
    if progress is None:
        return None
    tell = progress
    bar: Any = import_module("tqdm").tqdm

    class Told(bar):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs | {"disable": True})
            self.total, self.done = kwargs.get("total") or 0, kwargs.get("initial") or 0

        def update(self, n: float | None = 1) -> None:
            self.done += n or 0
            tell(int(self.done), int(max(self.total, self.done)), f"downloading {file}")

    return Told
