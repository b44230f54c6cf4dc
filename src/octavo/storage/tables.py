"""The tables of the database. Knows columns, not what is done with them. Imports SQLAlchemy: only the database's thread
may import this."""

from __future__ import annotations

import sqlalchemy as sa

__all__ = ["BATCHES", "FILES", "METADATA", "RESPONSES", "schema_version", "set_schema_version"]

METADATA = sa.MetaData()

_Number = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # SQLite counts up by itself in this type only

_SCHEMA = sa.Table("octavo_schema", METADATA, sa.Column("version", sa.Integer, nullable=False))

FILES = sa.Table(
    "files",
    METADATA,
    sa.Column("number", _Number, primary_key=True, doc="In the order of making."),
    sa.Column("id", sa.String(64), nullable=False, unique=True),
    sa.Column("owner", sa.String(64), nullable=False, doc="Whose it is; empty on a server without keys."),
    sa.Column("filename", sa.Text, nullable=False),
    sa.Column("purpose", sa.String(32), nullable=False),
    sa.Column("nbytes", sa.BigInteger, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False, doc="Unix time, seconds, as all times here."),
    sa.Column("expires_at", sa.BigInteger),
    sa.Index("files_by_owner", "owner", "number"),
)

BATCHES = sa.Table(
    "batches",
    METADATA,
    sa.Column("number", _Number, primary_key=True, doc="In the order of making."),
    sa.Column("id", sa.String(64), nullable=False, unique=True),
    sa.Column("owner", sa.String(64), nullable=False),
    sa.Column(
        "model", sa.Text, nullable=False, doc="The name of the model that was served when it was made."
    ),
    sa.Column("endpoint", sa.String(64), nullable=False),
    sa.Column("input_file_id", sa.String(64), nullable=False),
    sa.Column("completion_window", sa.String(16), nullable=False),
    sa.Column("metadata", sa.Text, doc="JSON."),
    sa.Column("seed", sa.BigInteger, nullable=False, doc="Of all lines that name none."),
    sa.Column(
        "output_name", sa.String(64), nullable=False, doc="The id that the output file has or will have."
    ),
    sa.Column("error_name", sa.String(64), nullable=False),
    sa.Column("output_expires_s", sa.BigInteger, doc="From the making of both files."),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("errors", sa.Text, doc="JSON: why it failed."),
    sa.Column("output_file_id", sa.String(64)),
    sa.Column("error_file_id", sa.String(64)),
    sa.Column("total", sa.Integer, nullable=False, default=0),
    sa.Column("completed", sa.Integer, nullable=False, default=0),
    sa.Column("failed", sa.Integer, nullable=False, default=0),
    sa.Column("usage", sa.Text, doc="JSON: the tokens of all answers."),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("expires_at", sa.BigInteger, nullable=False),
    *(
        sa.Column(f"{status}_at", sa.BigInteger)
        for status in (
            "in_progress",
            "finalizing",
            "completed",
            "failed",
            "expired",
            "cancelling",
            "cancelled",
        )
    ),
    sa.Index("batches_by_owner", "owner", "number"),
)

RESPONSES = sa.Table(
    "responses",
    METADATA,
    sa.Column("number", _Number, primary_key=True, doc="In the order of making."),
    sa.Column("id", sa.String(64), nullable=False, unique=True),
    sa.Column("owner", sa.String(64), nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False, doc="JSON."),
    sa.Column("items", sa.LargeBinary, nullable=False, doc="JSON."),
    sa.Column("tokens", sa.LargeBinary, doc="Four bytes each, little-endian."),
    sa.Column("digest", sa.String(64)),
    sa.Column("runner", sa.String(64)),
    sa.Column("nbytes", sa.BigInteger, nullable=False, doc="Of the four above."),
    sa.Index("responses_by_owner", "owner", "number", "nbytes"),
    sa.Index("responses_by_age", "created_at"),
)


def schema_version(connection: sa.Connection) -> int | None:
    """The version of the tables that are there; None for an empty database."""
    if not sa.inspect(connection).has_table(_SCHEMA.name):
        return None
    return connection.execute(sa.select(_SCHEMA.c.version)).scalar_one_or_none()


def set_schema_version(connection: sa.Connection, version: int) -> None:
    """Note that the tables now have `version`."""
    if connection.execute(sa.update(_SCHEMA).values(version=version)).rowcount == 0:
        connection.execute(sa.insert(_SCHEMA).values(version=version))
