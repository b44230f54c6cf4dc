"""The data folder: where it is, what lies in it, who may run its batches. Knows paths and locks, no table.

    octavo.db        the database (and SQLite's -wal and -shm beside it)
    files/ID         what clients uploaded, and the results of batches, also while they grow
    batches/ID       an empty file for each batch that has not ended: a start looks here before it opens the database
    batches.lock     held by the server that runs them

Nothing is made before something is stored. Names are ids that we made, never a client's.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path

from octavo.errors import StorageError

__all__ = ["DataFolder", "data_root", "storage_error", "storing", "sync_folder"]

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def data_root() -> Path:
    """`octavo` in `XDG_DATA_HOME`, or in ~/.local/share."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share").absolute() / "octavo"


class DataFolder:
    """The paths below `root`. Making one touches no disk."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.database = root / "octavo.db"
        self._files = root / "files"
        self._open = root / "batches"
        self._lock: TextIOWrapper | None = None

    def make(self) -> None:
        """Make what is not there, for this user alone. Raises ServerError."""
        with storing(self.root):
            for folder in (self.root, self._files, self._open):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def file(self, file_id: str) -> Path:
        """Where the content of a file is or will be."""
        return self._files / file_id

    def file_ids(self) -> list[tuple[str, float]]:
        """What lies there, and when it was last written (Unix time); with what was never finished. Raises OSError."""
        with os.scandir(self._files) as entries:
            return [(entry.name, entry.stat(follow_symlinks=False).st_mtime) for entry in entries]

    def note_open(self, batch_id: str) -> None:
        """From now on, `batch_id` is to be run. Raises OSError."""
        (self._open / batch_id).touch(mode=0o600)
        sync_folder(self._open)

    def note_ended(self, batch_id: str) -> None:
        """Nothing is left to do for `batch_id`. Raises OSError."""
        (self._open / batch_id).unlink(missing_ok=True)

    def open_batches(self) -> list[str]:
        """The ids noted as open, perhaps of batches that have ended since. Without a folder that may be read: none."""
        try:
            return sorted(path.name for path in self._open.iterdir())
        except OSError:
            return []

    def take_batches(self) -> bool:
        """True where this process runs the batches from now on, or does already; False where another one does.
        The lock ends with the process, however it ends. Raises ServerError."""
        if self._lock is not None:
            return True
        self.make()
        with storing(self.root):
            lock = (self.root / "batches.lock").open("a")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
                return False
            except OSError:
                lock.close()
                raise
        self._lock = lock
        return True

    def leave_batches(self) -> None:
        """Let another process run them."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def sync_folder(folder: Path) -> None:
    """Force the names in `folder` to the disk: a new file is else not sure to be found after a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def storage_error(path: Path, reason: str, hint: str, *, full: bool = False) -> StorageError:
    """What the disk did not let be done, as one sentence."""
    return StorageError(
        f"'{path}' cannot be used: {reason}; {hint}, or choose another folder with --data-dir.", full=full
    )


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """Turn an OSError inside, which is about `path`, into a StorageError."""
    try:
        yield
    except OSError as error:
        full = error.errno in _FULL
        hint = "free some space" if full else "make it readable and writable"
        raise storage_error(path, error.strerror or str(error), hint, full=full) from error
