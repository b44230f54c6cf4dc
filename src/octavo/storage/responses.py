"""The table of responses: what each is, whose, and how long it is kept. Knows nothing of what is in them."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from octavo.storage.records import ResponseRecord
from octavo.storage.rows import one, owned
from octavo.storage.tables import RESPONSES

__all__ = ["LIVES_S", "MAX_BYTES", "Responses"]

LIVES_S = 30 * 86_400
"""How long a response is kept, as OpenAI has it."""
MAX_BYTES = 1 << 30
"""Of one owner; of more, the oldest go."""


class Responses:
    """Where an `owner` is asked for, None stands for everybody's."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def put(self, record: ResponseRecord) -> None:
        """A new one, or one that has changed."""
        values = msgspec.structs.asdict(record) | {"nbytes": record.nbytes}
        update = sa.update(RESPONSES).where(RESPONSES.c.id == record.id)
        if self._connection.execute(update.values(values)).rowcount == 0:
            self._connection.execute(sa.insert(RESPONSES).values(values))

    def get(self, response_id: str, owner: str | None, now: float) -> ResponseRecord | None:
        """None where there is none, or another's, or one whose time is over."""
        query = sa.select(RESPONSES).where(
            RESPONSES.c.id == response_id,
            RESPONSES.c.created_at > now - LIVES_S,
            *owned(RESPONSES, owner),
        )
        return one(self._connection, query, ResponseRecord)

    def remove(self, response_id: str, owner: str | None) -> bool:
        """False where there is none, or another's."""
        query = sa.delete(RESPONSES).where(RESPONSES.c.id == response_id, *owned(RESPONSES, owner))
        return self._connection.execute(query).rowcount > 0

    def tidy(self, owner: str, now: float, *, max_bytes: int = MAX_BYTES) -> int:
        """Forget what is too old, and of `owner`'s the oldest beyond `max_bytes`; how many."""
        old = sa.delete(RESPONSES).where(RESPONSES.c.created_at <= now - LIVES_S)
        gone = self._connection.execute(old).rowcount
        # The newest whose bytes, with those of all newer ones, are too many.
        newer = sa.func.sum(RESPONSES.c.nbytes).over(order_by=RESPONSES.c.number.desc())
        sums = sa.select(RESPONSES.c.number, newer.label("held")).where(RESPONSES.c.owner == owner).subquery()
        first = sa.select(sa.func.max(sums.c.number)).where(sums.c.held > max_bytes)
        number = self._connection.execute(first).scalar_one_or_none()
        if number is not None:
            beyond = sa.delete(RESPONSES).where(RESPONSES.c.owner == owner, RESPONSES.c.number <= number)
            gone += self._connection.execute(beyond).rowcount
        return gone
