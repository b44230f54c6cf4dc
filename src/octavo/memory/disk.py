"""Blocks that memory has no room for, in a folder, by a thread of its own: nobody waits for a disk. Knows no scheduler.

It is a cache: what it cannot take in, it drops, and what it cannot give back is computed again. So whatever a disk does
(full, slow, read-only, damaged) is a warning in the log and never an error.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from typing import NamedTuple

from octavo.memory.folder import BlockFolder

__all__ = ["QUEUE_BYTES", "DiskCache", "News"]

QUEUE_BYTES = 128 << 20
"""Blocks that may wait to be written; more are dropped. A disk that is slower than memory is given away cannot
be helped by a longer queue."""
_TOUCHES = 1 << 16

_log = logging.getLogger(__name__)


class News(NamedTuple):
    """What became known since it was asked for the last time."""

    known: list[bytes]
    """Keys that earlier processes left; told once, at the start."""
    fetched: dict[bytes, bytes]
    """What was fetched, by key, in the order of asking."""
    gone: list[bytes]
    """Keys that are not there any more, or could not be stored or fetched."""


class DiskCache:
    """Named blocks in a folder. Every method returns at once, except `wait…` and `close`; any one thread may call them.

    A key that was stored can be fetched from then on, written or not.
    """

    def __init__(self, folder: BlockFolder, queue_bytes: int = QUEUE_BYTES) -> None:
        self._folder = folder
        self._queue_bytes = queue_bytes
        self._changed = threading.Condition()
        # All that follows is shared with the thread, under `_changed`.
        self._stores = OrderedDict[bytes, bytes]()
        self._stores_bytes = 0
        self._fetches: deque[bytes] = deque()
        self._touches: deque[bytes] = deque(maxlen=_TOUCHES)
        self._news = News([], {}, [])
        self._close_at: float | None = None
        self._ended = False
        self._writes_fail = False
        self._scanned = threading.Event()
        self._thread = threading.Thread(target=self._run, name="disk-cache", daemon=True)
        self._thread.start()

    @property
    def used_bytes(self) -> int:
        """Of all files in the folder."""
        return self._folder.used_bytes

    @property
    def fetching(self) -> bool:
        """Something was asked for and is not told yet."""
        return bool(self._fetches)

    @property
    def full(self) -> bool:
        """`store` would drop what it gets: to make the bytes is wasted work."""
        return self._ended or self._stores_bytes >= self._queue_bytes

    def store(self, key: bytes, data: bytes) -> None:
        """Keep `data`; where that fails, the news say that `key` is gone."""
        with self._changed:
            if self.full:
                self._news.gone.append(key)
            elif key not in self._stores:
                self._stores[key] = data
                self._stores_bytes += len(data)
            self._changed.notify_all()

    def fetch(self, key: bytes) -> None:
        """Ask for what was stored under `key`; the news tell."""
        with self._changed:
            if self._ended:
                self._news.gone.append(key)
            else:
                self._fetches.append(key)
            self._changed.notify_all()

    def touch(self, key: bytes) -> None:
        """`key` was of use just now: give up others first."""
        with self._changed:
            self._touches.append(key)
            self._changed.notify_all()

    def drop(self, key: bytes) -> None:
        """Say that `key`, which nobody could give to `store`, is gone."""
        with self._changed:
            self._news.gone.append(key)

    def take_news(self) -> News | None:
        """What became known since the last call; None for nothing."""
        if not any(self._news):
            return None
        with self._changed:
            news, self._news = self._news, News([], {}, [])
        return news

    def wait_for_scan(self, timeout_s: float) -> None:
        """Sleep until the news tell what earlier processes left, or `timeout_s` have passed."""
        self._scanned.wait(timeout_s)

    def wait(self, timeout_s: float) -> None:
        """Sleep until there is news, or `timeout_s` have passed."""
        with self._changed:
            self._changed.wait_for(lambda: any(self._news), timeout_s)

    def close(self, patience_s: float) -> None:
        """Write what waits, for at most about `patience_s`, and end. Calling it twice is harmless."""
        with self._changed:
            self._close_at = time.monotonic() + patience_s
            self._changed.notify_all()
        self._thread.join(patience_s + 0.5)

    # ---- the thread

    def _run(self) -> None:
        try:
            self._begin()
            self._scanned.set()
            while self._do_next():
                pass
        except Exception:  # noqa: BLE001 - a cache never ends an engine
            _log.exception("cache_disk: a fault of Octavo; the disk cache is off until the next start")
        finally:
            with self._changed:
                self._ended = True
                self._news.gone.extend([*self._fetches, *self._stores])
                self._fetches.clear()
                self._stores.clear()
                self._stores_bytes = 0
                self._changed.notify_all()
            self._scanned.set()
            self._folder.close()

    def _begin(self) -> None:
        try:
            known = self._folder.scan()
        except OSError as error:
            _log.warning(
                "cache_disk: %s cannot be read (%s); it begins empty", self._folder.root, error.strerror
            )
            return
        with self._changed:
            self._news.known.extend(known)
            self._changed.notify_all()

    def _do_next(self) -> bool:
        """Do the most urgent thing; False at the end. Fetches come first: sequences wait for them."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._fetches or self._touches or self._stores or self._close_at is not None
            )
            late = self._close_at is not None and time.monotonic() > self._close_at
            if late or not (self._fetches or self._touches or self._stores):
                return False
            fetch = self._fetches[0] if self._fetches else None
            touch = self._touches.popleft() if self._touches and fetch is None else None
            store = next(iter(self._stores.items())) if fetch is None is touch else None
            waiting = None if fetch is None else self._stores.get(fetch)
        if fetch is not None:
            data = self._folder.fetch(fetch) if waiting is None else waiting
            with self._changed:
                self._fetches.popleft()
                if data is None:
                    self._news.gone.append(fetch)
                else:
                    self._news.fetched[fetch] = data
                self._changed.notify_all()
        elif touch is not None:
            self._folder.touch(touch)
        elif store is not None:
            gone = self._write(*store)
            with self._changed:
                self._stores_bytes -= len(self._stores.pop(store[0]))
                self._news.gone.extend(gone)
        return True

    def _write(self, key: bytes, data: bytes) -> list[bytes]:
        """Store, and warn once when it fails, until it works again; the keys that are gone."""
        try:
            gone = self._folder.store(key, data)
        except OSError as error:
            if not self._writes_fail:
                _log.warning(
                    "cache_disk: %s cannot be written (%s); blocks are dropped until it can",
                    self._folder.root,
                    error.strerror,
                )
            self._writes_fail = True
            return [key]
        self._writes_fail = False
        return gone
