"""Named blocks in files: a folder with a size, the least recently used given up first. Knows bytes, no threads.

A file is written under another name and then renamed, so a reader finds it whole or not at all, and its header has a
checksum over everything. Nothing is forced to the disk: what a power cut leaves half-written is found out when it is
read.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from struct import Struct

__all__ = ["BlockFolder"]

_MAGIC = b"OCTAVOKV"
_VERSION = 1
_HEADER = Struct("<8sIIQ16s64s32s")
"""Magic, version, bytes of the key, bytes of the data, identity, key, sha256 of all this (itself 0) and the data."""
_FILE = re.compile(r"[0-9a-f]{2,128}\.kv")
_KIND = re.compile(r"[0-9a-f]{32}")
_MOST_BLOCK_BYTES = 1 << 28
"""That is read as one block; a real one has a hundredth of that."""
_UNFINISHED = ".part"
_MOST_WARNINGS = 10
"""About damaged or foreign files, one by one; a disk that fails would fill the log."""

_log = logging.getLogger(__name__)


class BlockFolder:
    """Blocks of one `identity` in `root`/(its hash)/(key in hex).kv; everything under `root` counts for the size.

    `identity` is whatever the bytes depend on beside the key: blocks of another model, kernel or layout are never
    read, only given up when their turn comes. One process at a time uses a folder. Not safe for several threads.

    Raises OSError where `root` cannot be made or written, BlockingIOError where another process uses it.
    """

    def __init__(self, root: Path, identity: bytes, size_bytes: int) -> None:
        self.root = root
        self.size_bytes = size_bytes
        self.used_bytes = 0
        """Of all files that count."""
        self._identity = sha256(identity).digest()[:16]
        self._kind = self._identity.hex()
        self._files = OrderedDict[str, int]()
        """Path below `root`: bytes, the least recently used first."""
        self._warnings = 0
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        (root / self._kind).mkdir(mode=0o700, exist_ok=True)  # it is what users wrote, in another form
        self._lock = (root / "lock").open("a")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise

    def scan(self) -> list[bytes]:
        """Take in what earlier processes left; the keys that can be fetched. What they had not finished is removed, and
        what is not ours is left alone with a warning. Raises OSError where the folder cannot be read."""
        found: list[tuple[int, str, int]] = []
        for folder in os.scandir(self.root):
            if _KIND.fullmatch(folder.name) and folder.is_dir(follow_symlinks=False):
                found.extend(self._left_in(folder.name))
            elif folder.name != "lock":
                self._warn("%s is not part of the cache and is left alone", folder.path)
        for _, name, size in sorted(found):
            self._files[name] = size
            self.used_bytes += size
        self._make_room(0)
        own = f"{self._kind}/"
        return [bytes.fromhex(Path(name).stem) for name in self._files if name.startswith(own)]

    def store(self, key: bytes, data: bytes) -> list[bytes]:
        """Write `data`, or only note the use where `key` is there. The keys that were given up for it, perhaps `key`
        itself. Raises OSError where it cannot be written; then `key` is not there."""
        name = self._name(key)
        if name in self._files:
            self.touch(key)
            return []
        size = _HEADER.size + len(data)
        if size > self.size_bytes:
            return [key]
        gone = self._make_room(size)
        path = self.root / name
        unfinished = path.with_suffix(_UNFINISHED)
        try:
            with unfinished.open("wb") as file:
                file.write(self._header(key, data))
                file.write(data)
            unfinished.replace(path)
        except OSError:
            with suppress(OSError):
                unfinished.unlink()
            raise
        self._files[name] = size
        self.used_bytes += size
        return gone

    def fetch(self, key: bytes) -> bytes | None:
        """What was stored under `key`, every bit of it; None where it is not there, or was damaged (then it is removed,
        with a warning)."""
        name = self._name(key)
        if name not in self._files:
            return None
        path = self.root / name
        try:
            with path.open("rb") as file:
                # Never more than was there before: the file may have become another one.
                whole = file.read(min(self._files[name], _MOST_BLOCK_BYTES) + 1)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                self._warn("%s cannot be read (%s); its blocks are computed again", path, error.strerror)
            self._forget(name)
            return None
        data = whole[_HEADER.size :]
        if whole[: _HEADER.size] != self._header(key, data):
            self._warn("%s is damaged or no block of this cache; it is removed and computed again", path)
            self._forget(name)
            return None
        self.touch(key)
        return data

    def touch(self, key: bytes) -> None:
        """Note that `key` was used now, for later processes too; nothing where it is not there."""
        name = self._name(key)
        if name in self._files:
            self._files.move_to_end(name)
            with suppress(OSError):  # a file that is gone is found out when it is fetched
                os.utime(self.root / name)

    def close(self) -> None:
        """Let other processes use the folder."""
        self._lock.close()

    def _left_in(self, kind: str) -> Iterator[tuple[int, str, int]]:
        """(time of the last use, path below the root, bytes) of the files of one identity."""
        for entry in os.scandir(self.root / kind):
            if entry.name.endswith(_UNFINISHED):
                with suppress(OSError):
                    Path(entry.path).unlink()
            elif _FILE.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with suppress(OSError):
                    stat = entry.stat()
                    yield stat.st_mtime_ns, f"{kind}/{entry.name}", stat.st_size
            else:
                self._warn("%s is not part of the cache and is left alone", entry.path)

    def _make_room(self, size: int) -> list[bytes]:
        """Give up files until `size` more bytes fit; the keys of this identity among them."""
        gone = []
        while self._files and self.used_bytes + size > self.size_bytes:
            name = next(iter(self._files))
            self._forget(name)
            kind, _, file = name.partition("/")
            if kind == self._kind:
                gone.append(bytes.fromhex(Path(file).stem))
        return gone

    def _forget(self, name: str) -> None:
        self.used_bytes -= self._files.pop(name)
        with suppress(OSError):
            (self.root / name).unlink()

    def _name(self, key: bytes) -> str:
        return f"{self._kind}/{key.hex()}.kv"

    def _header(self, key: bytes, data: bytes) -> bytes:
        fields = (_MAGIC, _VERSION, len(key), len(data), self._identity, key)
        digest = sha256(_HEADER.pack(*fields, b""))
        digest.update(data)
        return _HEADER.pack(*fields, digest.digest())

    def _warn(self, message: str, path: str | Path, *details: object) -> None:
        self._warnings += 1
        if self._warnings <= _MOST_WARNINGS:
            more = "; there are more, which are not told" if self._warnings == _MOST_WARNINGS else ""
            _log.warning(f"cache_disk: {message}%s", path, *details, more)
