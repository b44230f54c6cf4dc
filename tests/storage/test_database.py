"""The database: made when it is needed, whole transactions, and what it says when it cannot be used."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable

from octavo.errors import ServerError
from octavo.storage.database import SCHEMA_VERSION, Database
from octavo.storage.folder import DataFolder, data_root
from octavo.storage.records import FileRecord, Page
from octavo.storage.tables import METADATA

NOW = 1_000_000


def record(name: str, owner: str = "", **values: object) -> FileRecord:
    fields = {"filename": "a.jsonl", "purpose": "batch", "nbytes": 3, "created_at": NOW}
    return FileRecord(id=name, owner=owner, **{**fields, **values})  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    return DataFolder(tmp_path / "data")


@pytest.fixture
def database(folder: DataFolder) -> Iterator[Database]:
    database = Database(folder)
    yield database
    database.close()


async def _add(database: Database, *records: FileRecord) -> None:
    for one in records:
        await database.run(lambda stored, one=one: stored.files.add(one))  # type: ignore[misc]


async def _ids(
    database: Database, page: Page, owner: str | None = None, purpose: str | None = None
) -> list[str]:
    found = await database.run(lambda stored: stored.files.page(owner, purpose, page, NOW))
    assert found is not None
    return [one.id for one in found[0]] + (["…"] if found[1] else [])


def test_the_folder_is_where_xdg_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert data_root() == tmp_path / "octavo"
    monkeypatch.setenv("XDG_DATA_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_root() == tmp_path / ".local" / "share" / "octavo"


def test_nothing_is_imported_or_made_before_something_is_stored(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from octavo.storage.database import Database; "
        "from octavo.storage.folder import DataFolder; import octavo.storage.records; "
        f"d = Database(DataFolder(pathlib.Path({str(tmp_path / 'data')!r}))); d.close(); "
        "assert 'sqlalchemy' not in sys.modules and 'sqlite3' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert not (tmp_path / "data").exists()


async def test_what_is_stored_is_private_and_there_again(folder: DataFolder, database: Database) -> None:
    await _add(database, record("file-1", expires_at=NOW + 1))
    for path in (folder.root, folder.file("x").parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.database.stat().st_mode) == 0o600
    database.close()
    again = Database(folder)
    assert await again.run(lambda s: s.files.get("file-1", None, NOW)) == record("file-1", expires_at=NOW + 1)
    assert await again.run(lambda s: s.files.get("file-1", None, NOW + 1)) is None
    again.close()


async def test_every_commit_is_forced_to_the_disk(database: Database) -> None:
    def pragmas(stored: object) -> list[object]:
        run = stored.files._connection.exec_driver_sql  # type: ignore[attr-defined]
        return [run(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous", "foreign_keys")]

    assert await database.run(pragmas) == ["wal", 2, 1]


async def test_a_call_is_a_transaction(database: Database) -> None:
    def half(stored: object) -> None:
        stored.files.add(record("file-1"))  # type: ignore[attr-defined]
        raise LookupError

    with pytest.raises(LookupError):
        await database.run(half)
    assert await _ids(database, Page(limit=5)) == []


async def test_pages_by_owner_and_purpose(database: Database) -> None:
    owners = {"1": "a", "2": "b", "3": "a", "4": "a"}
    await _add(
        database, *(record(name, owner) for name, owner in owners.items()), record("5", purpose="vision")
    )
    assert await _ids(database, Page(limit=9)) == ["5", "4", "3", "2", "1"]
    assert await _ids(database, Page(limit=2), owner="a") == ["4", "3", "…"]
    assert await _ids(database, Page(limit=2, after="3"), owner="a") == ["1"]
    assert await _ids(database, Page(limit=2, after="1", ascending=True), owner="a") == ["3", "4"]
    assert await _ids(database, Page(limit=2), purpose="vision") == ["5"]
    unknown = Page(limit=2, after="2")  # another's
    assert await database.run(lambda stored: stored.files.page("a", None, unknown, NOW)) is None


async def test_many_calls_at_once_are_done_one_by_one(database: Database) -> None:
    await asyncio.gather(*(_add(database, record(f"file-{i}")) for i in range(20)))
    assert len(await _ids(database, Page(limit=99))) == 20


async def test_several_processes_open_and_write_to_one_database(
    folder: DataFolder, database: Database
) -> None:
    """Also a new one, in the same moment."""
    others = [Database(folder) for _ in range(5)]
    await asyncio.gather(
        *(
            _add(each, record(f"{place}-{i}"))
            for i in range(4)
            for place, each in enumerate((database, *others))
        )
    )
    for other in others:
        other.close()
    assert len(await _ids(database, Page(limit=99))) == 24


async def test_a_newer_database_is_left_alone(folder: DataFolder, database: Database) -> None:
    await _add(database, record("file-1"))
    database.close()
    with sqlite3.connect(folder.database) as connection:
        connection.execute("UPDATE octavo_schema SET version = ?", [SCHEMA_VERSION + 1])
    connection.close()
    newer = Database(folder)
    with pytest.raises(
        ServerError, match=rf"octavo\.db' was written by a newer Octavo .*{SCHEMA_VERSION + 1}.*--data-dir"
    ):
        await _add(newer, record("file-2"))
    newer.close()


async def test_what_is_no_database_is_named(folder: DataFolder, database: Database) -> None:
    folder.make()
    folder.database.write_bytes(b"letters" * 1000)
    with pytest.raises(
        ServerError, match=r"octavo\.db' cannot be used: file is not a database; move it away"
    ):
        await _add(database, record("file-1"))
    folder.database.unlink()
    await _add(database, record("file-1"))  # the next call tries again


async def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    database = Database(DataFolder(tmp_path / "file" / "data"))
    with pytest.raises(ServerError, match=r"file/data' cannot be used: Not a directory; .*--data-dir"):
        await _add(database, record("file-1"))
    database.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux")
async def test_a_full_disk_is_named(folder: DataFolder, database: Database) -> None:
    await _add(database, record("file-1"))
    pages = await database.run(
        lambda stored: stored.files._connection.exec_driver_sql("PRAGMA page_count").scalar_one()
    )
    await database.run(
        lambda stored: stored.files._connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
    )
    with pytest.raises(
        ServerError, match=r"octavo\.db' cannot be used: database or disk is full; free some space"
    ):
        await _add(database, record("file-2", filename="x" * 100_000))
    await _add(database, record("file-2"))
    assert await _ids(database, Page(limit=9)) == ["file-2", "file-1"]


async def test_a_closed_database_says_so(database: Database) -> None:
    database.close()
    with pytest.raises(ServerError, match="shutting down"):
        await _add(database, record("file-1"))


def test_the_tables_can_be_made_in_postgresql() -> None:
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    statements = [str(CreateTable(table).compile(dialect=dialect)) for table in METADATA.sorted_tables]
    assert sum("number BIGSERIAL NOT NULL" in text for text in statements) >= 2


def test_one_process_runs_the_batches(folder: DataFolder) -> None:
    assert folder.open_batches() == []
    assert folder.take_batches() and folder.take_batches()
    other = DataFolder(folder.root)
    assert not other.take_batches()
    folder.note_open("batch_1")
    assert other.open_batches() == ["batch_1"]
    folder.note_ended("batch_1")
    folder.note_ended("batch_1")
    assert other.open_batches() == []
    folder.leave_batches()
    assert other.take_batches()
    other.leave_batches()


def test_the_lock_ends_with_its_process(folder: DataFolder) -> None:
    code = (
        "import os, sys, pathlib; from octavo.storage.folder import DataFolder; "
        "assert DataFolder(pathlib.Path(sys.argv[1])).take_batches(); os.kill(os.getpid(), 9)"
    )
    ended = subprocess.run([sys.executable, "-c", code, os.fspath(folder.root)], check=False, timeout=60)
    assert ended.returncode == -9
    assert folder.take_batches()
    folder.leave_batches()
