"""Processes that simulate beside each other. Knows how many, not what they do."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager

__all__ = ["processes"]


@contextmanager
def processes(count: int | None) -> Iterator[tuple[Executor, int]]:
    """So many, or one for each core, and how many they are. After Ctrl-C nobody waits for what they were told."""
    workers = count or os.cpu_count() or 1
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as executor:
        try:
            yield executor, workers
        except KeyboardInterrupt:
            executor.shutdown(wait=False, cancel_futures=True)
            raise
