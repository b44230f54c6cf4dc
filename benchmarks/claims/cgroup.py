"""A memory cgroup for a process that must not use more. Knows no model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["Group", "memory_group"]

_TOPS = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))
"""Of version 1, and of version 2."""


class Group:
    """One cgroup, of either version."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._second = not (path / "memory.limit_in_bytes").exists()

    def _file(self, first: str, second: str) -> Path:
        return self.path / (second if self._second else first)

    def enter(self) -> None:
        """This process is in it from now on; what it used before counts elsewhere."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def limit(self, nbytes: int) -> None:
        """More than that and the system kills a process of the group."""
        self._file("memory.limit_in_bytes", "memory.max").write_text(str(nbytes))

    def used_bytes(self) -> int:
        """Now, without files that can be dropped."""
        dropped = "inactive_file" if self._second else "total_inactive_file"
        counters = dict(line.split() for line in (self.path / "memory.stat").read_text().splitlines())
        used = int(self._file("memory.usage_in_bytes", "memory.current").read_text())
        return used - int(counters[dropped])

    def peak_bytes(self) -> int:
        """At most, so far."""
        return int(self._file("memory.max_usage_in_bytes", "memory.peak").read_text())


@contextmanager
def memory_group(name: str) -> Iterator[Group | None]:
    """A new group, removed at the end; None where this user may make none."""
    for top in _TOPS:
        path = top / f"{name}-{os.getpid()}"
        try:
            path.mkdir()
        except OSError:
            continue
        group = Group(path)
        try:
            group.used_bytes()
        except (OSError, KeyError):  # made, but memory is not what groups count here
            path.rmdir()
            continue
        try:
            yield group
        finally:
            with suppress(OSError):
                path.rmdir()
        return
    yield None
