"""The table of files: what each is and whose. Knows no content (see folder) and no HTTP."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import sqlalchemy as sa

from octavo.storage.records import OPEN, FileRecord, Page
from octavo.storage.rows import one, owned, page_of
from octavo.storage.tables import BATCHES, FILES

__all__ = ["Files"]


class Files:
    """Where an `owner` is asked for, None stands for everybody's."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def add(self, record: FileRecord) -> None:
        """A new one."""
        self._connection.execute(sa.insert(FILES).values(msgspec.structs.asdict(record)))

    def get(self, file_id: str, owner: str | None, now: float) -> FileRecord | None:
        """None where there is none, or another's, or one whose time is over."""
        query = sa.select(FILES).where(FILES.c.id == file_id, *owned(FILES, owner), _lives(now))
        return one(self._connection, query, FileRecord)

    def page(
        self, owner: str | None, purpose: str | None, page: Page, now: float
    ) -> tuple[list[FileRecord], bool] | None:
        """Some of them, and whether there are more; None where `page.after` is unknown."""
        conditions = [*owned(FILES, owner), _lives(now)]
        if purpose is not None:
            conditions.append(FILES.c.purpose == purpose)
        return page_of(self._connection, FILES, conditions, page, FileRecord)

    def in_use(self, file_id: str) -> str | None:
        """The id of an open batch that reads it."""
        query = sa.select(BATCHES.c.id).where(BATCHES.c.input_file_id == file_id, BATCHES.c.status.in_(OPEN))
        return self._connection.execute(query.limit(1)).scalar_one_or_none()

    def remove(self, file_id: str) -> None:
        """Forget it; its content is the caller's to remove, afterwards."""
        self._connection.execute(sa.delete(FILES).where(FILES.c.id == file_id))

    def remove_expired(self, now: float) -> list[str]:
        """Forget those whose time is over and that no open batch reads; their ids."""
        used = sa.select(BATCHES.c.input_file_id).where(BATCHES.c.status.in_(OPEN))
        query = sa.select(FILES.c.id).where(FILES.c.expires_at <= now, FILES.c.id.not_in(used))
        gone = list(self._connection.execute(query).scalars())
        for file_id in gone:
            self.remove(file_id)
        return gone

    def unknown(self, names: Iterable[str]) -> list[str]:
        """Those of `names` that are no file's, nor the growing result of an open batch."""
        known = set(self._connection.execute(sa.select(FILES.c.id)).scalars())
        for column in (BATCHES.c.output_name, BATCHES.c.error_name):
            known.update(
                self._connection.execute(sa.select(column).where(BATCHES.c.status.in_(OPEN))).scalars()
            )
        return [name for name in names if name not in known]


def _lives(now: float) -> sa.ColumnElement[bool]:
    return sa.or_(FILES.c.expires_at.is_(None), FILES.c.expires_at > now)
