"""The database of what outlives the server: opened when first needed, used by one thread. Knows no table's meaning.

    record = await database.run(lambda stored: stored.files.get(file_id, owner))

One call is one transaction: all of it is there afterwards, or nothing. It goes through SQLAlchemy, so that PostgreSQL
can take SQLite's place by its URL; what is SQLite's own is in this file alone. SQLAlchemy costs some tenths of a second
to import, so the thread does that, and only in a server that stores something.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from octavo.errors import ServerError, StorageError
from octavo.storage.folder import DataFolder, storage_error, storing

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.exc import DBAPIError

    from octavo.storage.stored import Stored

__all__ = ["SCHEMA_VERSION", "Database"]

SCHEMA_VERSION = 1
"""Of the tables that exist already; a table that is added needs no new one."""
BUSY_S = 10.0
"""How long another process' transaction is waited for."""

_HINTS = {
    "full": "free some space",
    "locked": "end the process that holds it",
    "malformed": "move it away, or bring a copy of it back",
    "not a database": "move it away, or bring a copy of it back",
}
"""By SQLite's words."""

T = TypeVar("T")


class Database:
    """The tables in a data folder. `run` may be called from any event loop; nothing is made before it is.

    Every commit is forced to the disk (SQLite: WAL, synchronous FULL): what a client was told to be stored is there
    after a power cut.
    """

    def __init__(self, folder: DataFolder, url: str | None = None) -> None:
        """`url`: of another database than the folder's own, as SQLAlchemy writes it."""
        self.folder = folder
        self._url = url
        self._engine: Engine | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._closing = threading.Lock()
        self._closed = False

    @property
    def used(self) -> bool:
        """Something may be stored in it; False means that a look would only make it."""
        return self._url is not None or self._engine is not None or self.folder.database.exists()

    async def run(self, work: Callable[[Stored], T]) -> T:
        """`work` in the thread, inside a transaction. Raises what it raises, and ServerError where the database cannot
        be used; later calls try again."""
        with self._closing:
            if self._closed:
                raise ServerError("The server is shutting down; its database is closed.")
            if self._executor is None:
                self._executor = ThreadPoolExecutor(1, thread_name_prefix="storage")
            future = self._executor.submit(self._transaction, work)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Wait for what runs, and close. Later calls of `run` raise ServerError."""
        with self._closing:
            self._closed = True
        if self._executor is not None:
            self._executor.shutdown()
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    def _transaction(self, work: Callable[[Stored], T]) -> T:
        from sqlalchemy.exc import DBAPIError, IntegrityError

        from octavo.storage.stored import Stored

        try:
            if self._engine is None:
                self._engine = self._opened()
            with self._engine.begin() as connection:
                return work(Stored(connection))
        except IntegrityError:
            raise
        except DBAPIError as error:
            if self._engine is not None:  # perhaps the folder is another one now, or a better one
                self._engine.dispose()
                self._engine = None
            raise self._explained(error) from error

    def _opened(self) -> Engine:
        """The engine, with all tables. Raises ServerError for a database of a newer version."""
        from octavo.storage.tables import METADATA, schema_version, set_schema_version

        engine = self._made()
        try:
            with engine.begin() as connection:
                version = schema_version(connection)
                if version is not None and version > SCHEMA_VERSION:
                    raise ServerError(
                        f"'{self._place}' was written by a newer Octavo (its tables have version {version}, this one "
                        f"knows {SCHEMA_VERSION}); update Octavo, or choose another folder with --data-dir."
                    )
                METADATA.create_all(connection)
                set_schema_version(connection, SCHEMA_VERSION)
        except BaseException:
            engine.dispose()
            raise
        return engine

    def _made(self) -> Engine:
        from sqlalchemy import create_engine, event

        if self._url is not None:
            return create_engine(self._url, hide_parameters=True)  # errors would quote what is stored
        self.folder.make()
        with storing(self.folder.database):
            self.folder.database.touch(mode=0o600)
        engine = create_engine(
            f"sqlite:///{self.folder.database}",
            hide_parameters=True,
            connect_args={"timeout": BUSY_S, "isolation_level": None, "check_same_thread": False},
        )

        @event.listens_for(engine, "connect")
        def connected(connection: Any, _: Any) -> None:
            _write_ahead(connection)
            for pragma in ("synchronous = FULL", "foreign_keys = ON"):
                connection.execute(f"PRAGMA {pragma}").close()

        @event.listens_for(engine, "begin")
        def begun(connection: Any) -> None:
            # Python's driver would begin late and for reading; two processes that both go on to write would then
            # fail at once, where here the second waits.
            connection.exec_driver_sql("BEGIN IMMEDIATE")

        return engine

    @property
    def _place(self) -> str:
        return str(self.folder.database) if self._url is None else "the database"

    def _explained(self, error: DBAPIError) -> StorageError:
        reason = str(error.orig)
        if self._url is not None:
            return StorageError(f"The database cannot be used: {reason}.")
        hint = next(
            (hint for words, hint in _HINTS.items() if words in reason), "make it readable and writable"
        )
        return storage_error(self.folder.database, reason, hint, full="full" in reason)


def _write_ahead(connection: Any) -> None:
    """Have a write-ahead log. SQLite waits for nobody in this one statement: where another process opens the new
    database in the same moment, it is locked."""
    import sqlite3

    deadline_s = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").close()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline_s:
                raise
            time.sleep(0.01)
        else:
            return
