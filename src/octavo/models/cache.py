"""The cache folder: where it is, locks between processes, and file hashes remembered. Knows no model.

A hash is remembered for (path, size, modification time), so that a start does not read gigabytes to learn
what it learnt the time before.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from octavo.errors import ModelError, ServerError

__all__ = ["Hashes", "Progress", "cache_root", "locked", "need_space", "replace_file", "storing"]

Progress = Callable[[int, int, str], None]
"""progress(done_bytes, total_bytes, what): called often, from the thread that works."""

_CHUNK = 1 << 22
_SETTLED_NS = 2_000_000_000
"""A file changed this recently may change again within one tick of its clock; its hash is not remembered."""


def cache_root() -> Path:
    """`OCTAVO_CACHE`, or `octavo` in `XDG_CACHE_HOME`, or in ~/.cache."""
    if own := os.environ.get("OCTAVO_CACHE"):
        return Path(own).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache").absolute() / "octavo"


@contextmanager
def storing(target: Path) -> Iterator[None]:
    """Make `target`'s folder and hold a lock for `target`, so that of several processes one works and the
    others find its result. What the disk refuses becomes one sentence: a ServerError when it is full, else a
    ModelError.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(target):
            yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = "free some space" if full else "make it writable"
        raise (ServerError if full else ModelError)(
            f"'{target}' cannot be stored: {error.strerror or error}; {hint}, or set OCTAVO_CACHE to another "
            "folder."
        ) from error


@contextmanager
def locked(target: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock for `target`, a file beside it that is gone afterwards; a lock dies with its process.
    Raises OSError; a BlockingIOError when another has it and `wait` is False."""
    path = target.with_name(f"{target.name}.lock")
    while True:
        with path.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if not _is_still(path, lock.fileno()):
                continue  # the one who had it has removed it: a newcomer would lock another file
            try:
                yield
            finally:
                with suppress(OSError):
                    path.unlink()
            return


def _is_still(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file))
    except FileNotFoundError:
        return False


def need_space(folder: Path, nbytes: int, what: str) -> None:
    """Raise ServerError when the disk of an existing `folder` has less than `nbytes` free."""
    free = shutil.disk_usage(folder).free
    if free < nbytes:
        raise ServerError(
            f"{what} needs {nbytes / 1e6:.0f} MB in '{folder}', {free / 1e6:.0f} MB are free; free some "
            "space, or set OCTAVO_CACHE to another folder."
        )


def replace_file(path: Path, data: bytes) -> None:
    """Write a small file so that readers see the old or the new one, never a half."""
    draft = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
    draft.write_bytes(data)
    draft.replace(path)


class _Entry(msgspec.Struct, array_like=True):
    size: int
    mtime_ns: int
    sha256: str


class Hashes:
    """sha256 of files, remembered in `root/hashes.json`. Losing that file or a race for it costs a read."""

    def __init__(self, root: Path) -> None:
        self._path = root / "hashes.json"

    def sha256(self, path: Path, progress: Progress | None = None) -> str:
        """The hash (hex) of a file's bytes; reads the file unless it is known. Raises OSError."""
        known = self.known(path)
        if known is not None:
            return known
        total, done = path.stat().st_size, 0
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(done, total, f"hashing {path.name}")
        self.remember(path, digest.hexdigest())
        return digest.hexdigest()

    def known(self, path: Path) -> str | None:
        """The remembered hash, if the file still has the size and time it had."""
        stat = path.stat()
        entry = self._load().get(str(path.resolve()))
        if entry is None or (entry.size, entry.mtime_ns) != (stat.st_size, stat.st_mtime_ns):
            return None
        return entry.sha256

    def remember(self, path: Path, sha256: str, *, settled: bool = False) -> None:
        """Remember the hash of the file as it is now. `settled`: nobody else writes this file."""
        stat = path.stat()
        if not settled and time.time_ns() - stat.st_mtime_ns < _SETTLED_NS:
            return
        entries = self._load()
        entries[str(path.resolve())] = _Entry(stat.st_size, stat.st_mtime_ns, sha256)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, msgspec.json.encode(entries))
        except OSError:
            pass  # a cache that cannot be written is still a cache

    def _load(self) -> dict[str, _Entry]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, _Entry])
        except (OSError, msgspec.MsgspecError):
            return {}
