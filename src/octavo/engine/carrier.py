"""Carries blocks between a backend's memory and the disk cache, as plans say. Knows not why."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from pathlib import Path

from octavo.backends.base import Backend, DiskBlock, Plan
from octavo.config import EngineConfig
from octavo.errors import SettingsError
from octavo.memory.disk import DiskCache
from octavo.memory.folder import BlockFolder
from octavo.memory.sizing import block_bytes
from octavo.scheduling.inputs import DiskNews

__all__ = ["Carrier", "open_carrier"]

_log = logging.getLogger(__name__)

MOST_FETCHES = 64
"""Blocks that may be asked for and not here yet."""
MOST_FETCHED_BYTES = 256 << 20
"""Of these blocks: until the next step they are held beside the KV memory."""
IDLE_WAIT_S = 0.005
"""How long a step that has nothing to compute sleeps until the disk answers; a message may come meanwhile."""
SCAN_S = 0.25
"""How long a start waits for what earlier engines left, so that the first requests find it: some 20,000 files."""
CLOSE_S = 1.0
"""How long the end may take for blocks that wait to be written; a parent waits 2 s before it kills."""


class Carrier:
    """Between one backend and one disk cache. What was fetched is held from `news` to the next `carry`, no longer."""

    def __init__(self, backend: Backend, disk: DiskCache, most_fetches: int = MOST_FETCHES) -> None:
        """`most_fetches`: how many blocks the scheduler may ask for at once."""
        self.most_fetches = most_fetches
        self._backend = backend
        self._disk = disk
        self._fetched: dict[bytes, bytes] = {}
        disk.wait_for_scan(SCAN_S)

    @property
    def used_bytes(self) -> int:
        """That the disk cache takes."""
        return self._disk.used_bytes

    def news(self) -> DiskNews | None:
        """For the next inputs."""
        news = self._disk.take_news()
        if news is None:
            return None
        self._fetched = news.fetched
        return DiskNews(tuple(news.known), tuple(news.fetched), tuple(news.gone))

    def carry(self, plan: Plan) -> None:
        """Do what `plan` says of the disk, before its launch: saves, then loads. A copy of each block is made, and the
        disk is not waited for."""
        for save in plan.saves:
            if self._disk.full:
                self._disk.drop(save.key)
            else:
                self._disk.store(save.key, self._backend.read_block(save.group, save.block))
        for load in plan.loads:
            self._backend.write_block(load.group, load.block, self._fetched[load.key])
        self._fetched = {}
        for key in plan.touches:
            self._disk.touch(key)
        for key in plan.fetches:
            self._disk.fetch(key)

    def rest(self) -> bool:
        """There was nothing to compute: sleep a little if the disk is to answer. Was it?"""
        waits = self._disk.fetching
        if waits:
            self._disk.wait(IDLE_WAIT_S)
        return waits

    def close(self, unsaved: Iterable[DiskBlock]) -> None:
        """Write what waits and as much of `unsaved` as there is time for, and end."""
        deadline = time.monotonic() + CLOSE_S
        for block in unsaved:
            while self._disk.full and time.monotonic() < deadline:
                time.sleep(0.002)
            if self._disk.full or time.monotonic() >= deadline:
                break
            self._disk.store(block.key, self._backend.read_block(block.group, block.block))
        self._disk.close(max(deadline - time.monotonic(), 0))


def open_carrier(config: EngineConfig, backend: Backend) -> Carrier | None:
    """The way to the disk cache, where one is asked for and can be had; where it cannot, with a warning. Raises
    SettingsError for settings that make no sense."""
    if config.cache_disk is None:
        return None
    if not config.prefix_cache or config.allocator != "paged":
        off = "prefix_cache is off" if not config.prefix_cache else f"allocator is {config.allocator}"
        raise SettingsError(f"cache_disk keeps the blocks of the prefix cache, but {off}; drop one of them.")
    groups = backend.spec.kv_groups
    size = block_bytes(backend.spec, config.block_size, config.kv_dtype) * len(groups)
    if config.cache_disk_size_bytes < size:
        raise SettingsError(
            f"cache_disk_size is {config.cache_disk_size_bytes} bytes, and one block takes {size}; give more."
        )
    layout = [(len(group.layers), group.kv_heads, group.head_dim) for group in groups]
    identity = repr((backend.arithmetic_id, config.kv_dtype, config.block_size, layout)).encode()
    try:
        folder = BlockFolder(Path(config.cache_disk), identity, config.cache_disk_size_bytes)
    except OSError as error:
        reason = "another engine uses it" if isinstance(error, BlockingIOError) else error.strerror
        _log.warning("cache_disk %s cannot be used (%s); serving without it", config.cache_disk, reason)
        return None
    return Carrier(backend, DiskCache(folder), max(1, min(MOST_FETCHES, MOST_FETCHED_BYTES // size)))
