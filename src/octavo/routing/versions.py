"""Policies in a folder, numbered: which one decides now, where each came from, and the way back. Knows files.

A version is never changed. Which one is current stands in `versions.json`, which is replaced whole: a gateway that
reads the folder meanwhile has the old one or the new one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from octavo.errors import RoutingError
from octavo.routing.policy import Policy

__all__ = ["Book", "Version", "add", "load", "read_book", "roll_back", "stamp"]

FILE = "versions.json"


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One policy."""

    number: int
    """From 1 on."""
    made: str
    """ISO 8601, UTC."""
    threshold: float
    target: str
    """What the threshold was chosen for."""
    root: int
    """The version whose classifier it has: scores of one root can be compared."""

    @property
    def file(self) -> str:
        """Its name in the folder."""
        return f"{self.number:04}.npz"


class Book(msgspec.Struct, frozen=True, kw_only=True):
    """All versions of a folder."""

    format: int = 1
    current: int
    versions: tuple[Version, ...]

    def __getitem__(self, number: int) -> Version:
        """Raises RoutingError."""
        for one in self.versions:
            if one.number == number:
                return one
        known = ", ".join(str(one.number) for one in self.versions)
        raise RoutingError(f"There is no version {number}; there are {known}.")


def read_book(folder: Path) -> Book:
    """Raises RoutingError."""
    path = folder / FILE
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Book)
    except FileNotFoundError:
        raise RoutingError(
            f"{folder} has no versions of a policy; octavo route versions {folder} --add policy.npz makes the first."
        ) from None
    except OSError as error:
        raise RoutingError(f"{path} cannot be read: {error.strerror}.") from None
    except msgspec.MsgspecError as error:
        raise RoutingError(f"{path} is no list of versions: {error}.") from None
    if found.format != 1:
        raise RoutingError(f"{path} has format {found.format}, and this version reads 1.")
    found[found.current]
    return found


def load(folder: Path) -> tuple[Version, Policy]:
    """The one that decides now. Raises RoutingError."""
    book = read_book(folder)
    version = book[book.current]
    return version, Policy.load(folder / version.file)


def add(folder: Path, policy: Policy, *, root: int | None = None) -> Version:
    """Another version, which decides from now on. `root`: whose classifier it has; None: it is a new one. Raises
    RoutingError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RoutingError(f"The folder {folder} cannot be made: {error.strerror}.") from None
    with _alone(folder):
        known = read_book(folder).versions if (folder / FILE).exists() else ()
        number = max((one.number for one in known), default=0) + 1
        version = Version(
            number=number,
            made=datetime.now(UTC).isoformat(timespec="seconds"),
            threshold=policy.header.threshold,
            target=policy.header.target,
            root=number if root is None else root,
        )
        policy.save(folder / version.file)
        _write(folder, Book(current=number, versions=(*known, version)))
    return version


def roll_back(folder: Path, number: int | None = None) -> Version:
    """That version decides from now on; None: the one before the current one. Raises RoutingError."""
    with _alone(folder):
        book = read_book(folder)
        if number is None:
            older = [one.number for one in book.versions if one.number < book.current]
            if not older:
                raise RoutingError(f"Version {book.current} is the first of {folder}; there is no way back.")
            number = max(older)
        version = book[number]
        Policy.load(folder / version.file)  # it can still be read
        _write(folder, msgspec.structs.replace(book, current=number))
    return version


def stamp(folder: Path) -> tuple[int, int, int]:
    """Changes when the current version does; zeros where the folder cannot be read."""
    try:
        found = (folder / FILE).stat()
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_mtime_ns, found.st_size


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """No other process changes the folder meanwhile."""
    try:
        file = (folder / ".lock").open("w")
    except OSError as error:
        raise RoutingError(f"The folder {folder} cannot be written: {error.strerror}.") from None
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write(folder: Path, book: Book) -> None:
    whole = folder / f".{FILE}.{os.getpid()}.part"
    try:
        whole.write_bytes(msgspec.json.format(msgspec.json.encode(book)) + b"\n")
        whole.replace(folder / FILE)
    except OSError as error:
        whole.unlink(missing_ok=True)
        raise RoutingError(f"{folder / FILE} cannot be written: {error.strerror}.") from None
