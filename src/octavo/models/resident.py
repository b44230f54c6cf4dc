"""Reads a file into memory of this process's own, in huge pages. Knows no format.

A mapped file has pages of 4 KiB, and walking their tables costs a third of the memory's speed; few kernels can give
huge pages to a file. The file's own pages stay in the system's cache, which any other need for memory takes first.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

__all__ = ["read_resident"]

_HUGE_PAGE = 2 << 20
_PART = 4 * _HUGE_PAGE
"""Bytes that one thread reads at once: whole huge pages, so that no two threads make the same one."""


def read_resident(path: Path, threads: int) -> memoryview:
    """The bytes of `path`: uint8 [bytes], in private memory that is given back with the view's last user.

    Raises OSError for what cannot be read, or when there is no memory; EOFError for a file that is cut meanwhile.
    """
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        pages = max(-(-size // _HUGE_PAGE), 1)
        memory = mmap.mmap(-1, pages * _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a wish; small pages do as well
                memory.madvise(mmap.MADV_HUGEPAGE)
        view = memoryview(memory)

        def read(begin: int) -> None:
            end = min(begin + _PART, size)
            while begin < end:
                count = os.preadv(file.fileno(), [view[begin:end]], begin)
                if not count:
                    raise EOFError(f"'{path}' ends at {begin} of {size} bytes.")
                begin += count

        with ThreadPoolExecutor(max(threads, 1), "octavo-read") as pool:
            for _ in pool.map(read, range(0, size, _PART)):
                pass
    return view[:size].toreadonly()
