"""The table of batches: what each is, how far it is. Knows no line of theirs (see results) and no HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from octavo.storage.records import OPEN, BatchRecord, BatchStatus, Page
from octavo.storage.rows import one, owned, page_of, record_of
from octavo.storage.tables import BATCHES

__all__ = ["Batches"]


class Batches:
    """Where an `owner` is asked for, None stands for everybody's."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def add(self, record: BatchRecord) -> None:
        """A new one."""
        self._connection.execute(sa.insert(BATCHES).values(msgspec.structs.asdict(record)))

    def get(self, batch_id: str, owner: str | None = None) -> BatchRecord | None:
        """None where there is none, or another's."""
        query = sa.select(BATCHES).where(BATCHES.c.id == batch_id, *owned(BATCHES, owner))
        return one(self._connection, query, BatchRecord)

    def page(self, owner: str | None, page: Page) -> tuple[list[BatchRecord], bool] | None:
        """Some of them, and whether there are more; None where `page.after` is unknown."""
        return page_of(self._connection, BATCHES, owned(BATCHES, owner), page, BatchRecord)

    def open(self) -> list[BatchRecord]:
        """All that have not ended, the oldest first."""
        query = sa.select(BATCHES).where(BATCHES.c.status.in_(OPEN)).order_by(BATCHES.c.number)
        rows = self._connection.execute(query).mappings()
        return [record_of(row, BatchRecord) for row in rows]

    def change(
        self, batch_id: str, values: Mapping[str, Any], of: Sequence[BatchStatus] = OPEN
    ) -> BatchRecord | None:
        """Give columns new values where the status is one of `of`. The batch as it is then; None for an unknown one."""
        update = sa.update(BATCHES).where(BATCHES.c.id == batch_id, BATCHES.c.status.in_(of))
        self._connection.execute(update.values(**values))
        return self.get(batch_id)
