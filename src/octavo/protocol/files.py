"""OpenAI's file objects, and what an upload's form may say. Knows no storage behind them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from octavo.errors import InvalidParameter
from octavo.storage.records import FileRecord

__all__ = [
    "BATCH_OUTPUT",
    "LIVES_S",
    "MAX_BATCH_FILE_BYTES",
    "MAX_FILE_BYTES",
    "PURPOSES",
    "FileDeleted",
    "FileList",
    "FileObject",
    "expiry",
    "expiry_of_form",
    "file_object",
    "purpose_of_form",
]

# OpenAI's own limits.
MAX_FILE_BYTES = 512 << 20
MAX_BATCH_FILE_BYTES = 200 << 20
LIVES_S = (3600, 2_592_000)
"""What a file may be asked to live, least and most; the most is also what one for a batch lives by itself."""

PURPOSES = ("assistants", "batch", "evals", "fine-tune", "user_data", "vision")
"""What an upload may be for. Only batch has a use here; the others are kept and given back."""
BATCH_OUTPUT = "batch_output"


class FileObject(msgspec.Struct, kw_only=True):
    """A stored file."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    """Unix time in seconds, as all times."""
    filename: str
    purpose: str
    status: Literal["processed"]
    expires_at: int | None


class FileList(msgspec.Struct, kw_only=True):
    """A page of files."""

    object: Literal["list"]
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(msgspec.Struct, kw_only=True):
    """The file is gone."""

    id: str
    object: Literal["file"]
    deleted: Literal[True]


def file_object(record: FileRecord) -> dict[str, Any]:
    """A file as OpenAI's object."""
    return {
        "id": record.id,
        "object": "file",
        "bytes": record.nbytes,
        "created_at": record.created_at,
        "filename": record.filename,
        "purpose": record.purpose,
        "status": "processed",
        "expires_at": record.expires_at,
    }


def purpose_of_form(fields: Mapping[str, str]) -> str:
    """Raises InvalidParameter."""
    purpose = fields.get("purpose")
    if purpose is None:
        raise InvalidParameter("purpose is missing; it is required.", "purpose")
    if purpose not in PURPOSES:
        raise InvalidParameter(f"purpose is {purpose[:40]!r}; it is one of {', '.join(PURPOSES)}.", "purpose")
    return purpose


def expiry_of_form(fields: Mapping[str, str]) -> int | None:
    """How many seconds a file is to live, as `expires_after[anchor]` and `expires_after[seconds]` say. Raises
    InvalidParameter."""
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    number = (
        int(seconds)
        if seconds and seconds.isascii() and seconds.isdecimal() and len(seconds) < 10
        else seconds
    )
    return expiry(anchor, number, "expires_after[{}]")


def expiry(anchor: Any, seconds: Any, name: str) -> int:
    """The seconds of an expiry policy; `name`: its fields', with {} for the last part. Raises InvalidParameter."""
    if anchor != "created_at":
        field = name.format("anchor")
        raise InvalidParameter(f"{field} is {str(anchor)[:40]!r}; it must be 'created_at'.", field)
    low, high = LIVES_S
    if not isinstance(seconds, int) or not low <= seconds <= high:
        field = name.format("seconds")
        raise InvalidParameter(
            f"{field} is {str(seconds)[:40]!r}; it must be a whole number in {low} … {high}.", field
        )
    return seconds
