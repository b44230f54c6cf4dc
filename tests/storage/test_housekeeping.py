"""What nobody can ask for any more goes; what somebody needs stays."""

from __future__ import annotations

import os
import time
from pathlib import Path

from octavo.storage.database import Database
from octavo.storage.folder import DataFolder
from octavo.storage.housekeeping import ORPHAN_S, tidy
from octavo.storage.records import BatchRecord, FileRecord


def _file(name: str, expires_at: int | None = None) -> FileRecord:
    return FileRecord(
        id=name, owner="", filename="f", purpose="batch", nbytes=1, created_at=0, expires_at=expires_at
    )


async def test_what_is_over_or_left_behind_is_removed(tmp_path: Path) -> None:
    database = Database(DataFolder(tmp_path / "data"))
    folder = database.folder
    batch = BatchRecord(
        id="batch_1",
        owner="",
        model="m",
        endpoint="/v1/completions",
        input_file_id="file-input",
        completion_window="24h",
        created_at=0,
        expires_at=1,
        seed=1,
        output_name="file-growing",
        error_name="file-growing-too",
        status="in_progress",
    )
    now = int(time.time())
    for record in (_file("file-over", now - 1), _file("file-input", now - 1), _file("file-kept", now + 99)):
        await database.run(lambda stored, record=record: stored.files.add(record))  # type: ignore[misc]
    await database.run(lambda stored: stored.batches.add(batch))
    old = now - ORPHAN_S - 10
    for name in ("file-over", "file-input", "file-kept", "file-growing", "file-cut-off", "file-uploading"):
        folder.file(name).write_bytes(b"x")
        if name != "file-uploading":
            os.utime(folder.file(name), (old, old))
    await tidy(database)
    left = sorted(path.name for path in folder.file("x").parent.iterdir())
    assert left == ["file-growing", "file-input", "file-kept", "file-uploading"]
    await database.run(lambda stored: stored.batches.change("batch_1", {"status": "completed"}))
    await tidy(database)
    left = sorted(path.name for path in folder.file("x").parent.iterdir())
    assert left == ["file-kept", "file-uploading"]
    database.close()
