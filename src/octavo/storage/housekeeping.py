"""What nobody can ask for any more is removed from the data folder. Knows files, not when it is called."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from octavo.storage.database import Database
from octavo.storage.folder import DataFolder, storing

__all__ = ["remove_contents", "tidy"]

ORPHAN_S = 24 * 3600
"""A file that no table knows may be one that is being uploaded to another server of this folder."""


async def tidy(database: Database) -> None:
    """Remove the files whose time is over, and what uploads that were cut off have left. Raises ServerError."""
    now, folder = time.time(), database.folder
    gone = await database.run(lambda stored: stored.files.remove_expired(now))
    old = await asyncio.to_thread(_old, folder, now - ORPHAN_S)
    if old:
        gone += await database.run(lambda stored: stored.files.unknown(old))
    await asyncio.to_thread(remove_contents, folder, gone)


def remove_contents(folder: DataFolder, file_ids: Iterable[str]) -> None:
    """Remove what lies in the folder under these ids; what is not there is none. Raises ServerError."""
    for file_id in file_ids:
        path = folder.file(file_id)
        with storing(path):
            path.unlink(missing_ok=True)


def _old(folder: DataFolder, before_s: float) -> list[str]:
    with storing(folder.root):
        return [name for name, written_s in folder.file_ids() if written_s < before_s]
