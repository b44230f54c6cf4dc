"""What work in the database's thread gets: each kind of stored thing, in one transaction. Knows no kind itself."""

from __future__ import annotations

import sqlalchemy as sa

from octavo.storage.batches import Batches
from octavo.storage.files import Files
from octavo.storage.responses import Responses

__all__ = ["Stored"]


class Stored:
    """All kinds of things in one database, seen through one transaction."""

    def __init__(self, connection: sa.Connection) -> None:
        self.files = Files(connection)
        self.batches = Batches(connection)
        self.responses = Responses(connection)
