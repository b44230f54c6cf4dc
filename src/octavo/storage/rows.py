"""What the kinds of stored things share: rows as records, and pages of them. Knows no kind."""

from __future__ import annotations

from typing import TypeVar

import msgspec
import sqlalchemy as sa

from octavo.storage.records import Page

__all__ = ["one", "owned", "page_of", "record_of"]

R = TypeVar("R", bound=msgspec.Struct)


def record_of(row: sa.RowMapping, kind: type[R]) -> R:
    """The columns that have a field's name."""
    return kind(**{name: row[name] for name in kind.__struct_fields__})


def one(connection: sa.Connection, query: sa.Select[tuple[object, ...]], kind: type[R]) -> R | None:
    """The row that `query` finds; None for none."""
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else record_of(row, kind)


def owned(table: sa.Table, owner: str | None) -> list[sa.ColumnElement[bool]]:
    """The condition that a row is `owner`'s; None sees all."""
    return [] if owner is None else [table.c.owner == owner]


def page_of(
    connection: sa.Connection,
    table: sa.Table,
    conditions: list[sa.ColumnElement[bool]],
    page: Page,
    kind: type[R],
) -> tuple[list[R], bool] | None:
    """The rows of `page` in the order of making, and whether there are more; None where its `after` is unknown."""
    query = sa.select(table).where(*conditions)
    if page.after is not None:
        place = connection.execute(
            sa.select(table.c.number).where(table.c.id == page.after, *conditions)
        ).scalar_one_or_none()
        if place is None:
            return None
        query = query.where(table.c.number > place if page.ascending else table.c.number < place)
    order = table.c.number.asc() if page.ascending else table.c.number.desc()
    rows = connection.execute(query.order_by(order).limit(page.limit + 1)).mappings().all()
    return [record_of(row, kind) for row in rows[: page.limit]], len(rows) > page.limit
