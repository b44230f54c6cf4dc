"""Which server processes that use a data folder are alive: each holds a lock. Knows nothing of what they run."""

from __future__ import annotations

import contextlib
import fcntl
import uuid
from io import TextIOWrapper
from pathlib import Path

from octavo.storage.folder import storing

__all__ = ["Runners"]


class Runners:
    """A file for each process, locked while it lives, however it ends. Names are ids that we made."""

    def __init__(self, root: Path) -> None:
        self.name = uuid.uuid4().hex
        """Of this process."""
        self._folder = root / "runners"
        self._lock: TextIOWrapper | None = None

    def enter(self) -> None:
        """From now on others see this process. Raises ServerError."""
        if self._lock is not None:
            return
        with storing(self._folder):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = (self._folder / self.name).open("a")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BaseException:
                lock.close()
                raise
        self._lock = lock

    def leave(self) -> None:
        """This process runs nothing any more."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                (self._folder / self.name).unlink()
            self._lock.close()
            self._lock = None

    def alive(self, name: str) -> bool:
        """Whether the process that entered under `name` still holds its lock."""
        if name == self.name:
            return self._lock is not None
        try:
            with (self._folder / name).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with contextlib.suppress(OSError):
                    (self._folder / name).unlink()
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False
