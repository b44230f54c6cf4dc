"""Fetches a file from the Hugging Face hub with `huggingface_hub` (the extra `hub`). Knows no file format."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from octavo.errors import ModelError, ServerError
from octavo.models.cache import Progress

__all__ = ["hub_file"]

_REF = re.compile(r"hf:(?P<repo>[\w.-]+/[\w.-]+)/(?P<file>[^\s]+\.gguf)")


_PATIENCE_S = 5.0
"""For the hub's first sign of life."""


def hub_file(ref: str, cache: Path, progress: Progress | None = None) -> Path:
    """The file that `hf:owner/name/file.gguf` means, from `cache` or downloaded into it (the library resumes
    and verifies). `HF_ENDPOINT` and `HF_TOKEN` work as everywhere. Raises ModelError, and ServerError where the
    network or the hub fails.
    """
    match = _REF.fullmatch(ref)
    if match is None:
        raise ModelError(f"'{ref}' is no file on the hub; write hf:owner/name/file.gguf.")
    repo, file = match["repo"], match["file"]
    cached = _cached(cache, repo, file)
    if cached is not None:
        return cached
    try:
        import httpx2  # what huggingface_hub speaks with
        from huggingface_hub import errors
    except ImportError as error:
        raise ModelError(
            f"'{ref}' needs the package huggingface_hub, which is missing; run pip install 'octavo[hub]'."
        ) from error
    try:
        with _quiet():
            return _downloaded(repo, file, cache, progress)
    except errors.GatedRepoError as error:
        raise ModelError(
            f"'{repo}' is open only to accounts that accepted its terms; set HF_TOKEN."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError(
            f"The hub has no '{repo}', or it is private; check the name or set HF_TOKEN."
        ) from error
    except errors.OfflineModeIsEnabled as error:
        raise ModelError(f"'{ref}' is not in the cache, and HF_HUB_OFFLINE is set; unset it.") from error
    except (httpx2.TransportError, errors.LocalEntryNotFoundError) as error:
        raise ServerError(
            f"'{ref}' cannot be downloaded: the hub cannot be reached; check the network."
        ) from error
    except errors.EntryNotFoundError as error:
        raise ModelError(f"'{repo}' on the hub has no file '{file}'; check the name.") from error
    except errors.HFValidationError as error:
        raise ModelError(f"'{ref}' is no name on the hub ({_first_line(error)}); check it.") from error
    except (errors.HfHubHTTPError, OSError) as error:
        status = getattr(getattr(error, "response", None), "status_code", 0)
        if 400 <= status < 500 and status not in (408, 429):
            raise ModelError(
                f"'{ref}' cannot be downloaded ({_first_line(error)}); check the name, HF_ENDPOINT and HF_TOKEN."
            ) from error
        raise ServerError(f"'{ref}' cannot be downloaded ({_first_line(error)}); try again.") from error


def _downloaded(repo: str, file: str, cache: Path, progress: Progress | None) -> Path:
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url

    endpoint = os.environ.get("HF_ENDPOINT")
    # hf_hub_download goes on trying for half a minute, by no option less; this asks once.
    get_hf_file_metadata(
        hf_hub_url(repo, file, endpoint=endpoint),
        timeout=float(os.environ.get("HF_HUB_ETAG_TIMEOUT", _PATIENCE_S)),
        endpoint=endpoint,
    )
    return Path(
        hf_hub_download(
            repo, file, cache_dir=cache, endpoint=endpoint, tqdm_class=_progress_class(progress, file)
        )
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """The library tells each of its attempts as a warning; we tell how it ended."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    if "HF_HUB_VERBOSITY" not in os.environ:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


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
