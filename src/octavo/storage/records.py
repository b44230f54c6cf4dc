"""What is stored, as values: a file, a batch, a response. Knows no table, and costs nothing to import."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

__all__ = ["OPEN", "BatchRecord", "BatchStatus", "FileRecord", "Page", "ResponseRecord"]

BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
OPEN: tuple[BatchStatus, ...] = ("validating", "in_progress", "finalizing", "cancelling")
"""Something is left to do."""

assert set(OPEN) < set(get_args(BatchStatus))


class FileRecord(msgspec.Struct, kw_only=True, frozen=True):
    """A file. Times are Unix times in seconds."""

    id: str
    owner: str
    """Whose it is; "" on a server without keys."""
    filename: str
    """As its sender named it; never a path of ours."""
    purpose: str
    nbytes: int
    created_at: int
    expires_at: int | None = None


class BatchRecord(msgspec.Struct, kw_only=True, frozen=True):
    """A batch. Times are Unix times in seconds."""

    id: str
    owner: str
    model: str
    """The name of the model that was served when it was made."""
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    seed: int
    """Gives each line that names no seed its own, the same whenever it runs."""
    output_name: str
    """The id that the output file has or will have, also the name of its content while it grows."""
    error_name: str
    metadata: str | None = None
    """JSON."""
    output_expires_s: int | None = None
    """From the making of output and error file."""
    status: BatchStatus = "validating"
    errors: str | None = None
    """JSON: why it failed."""
    output_file_id: str | None = None
    error_file_id: str | None = None
    usage: str | None = None
    """JSON: the tokens of all answers, once it has ended."""
    total: int = 0
    completed: int = 0
    failed: int = 0
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None


class ResponseRecord(msgspec.Struct, kw_only=True, frozen=True):
    """A response, and what a later one needs to go on from it. Times are Unix times in seconds."""

    id: str
    owner: str
    created_at: int
    status: str
    body: bytes
    """The response as JSON, as it is told."""
    items: bytes
    """JSON: all items that were its input, those of earlier responses too."""
    tokens: bytes | None = None
    """The ids of its prompt and its answer, four bytes each, little-endian; None where no one can go on from them."""
    digest: str | None = None
    """Of what those ids were made from."""
    runner: str | None = None
    """Which server process makes it, while it has not ended."""

    @property
    def nbytes(self) -> int:
        return len(self.body) + len(self.items) + len(self.tokens or b"")


class Page(msgspec.Struct, kw_only=True, frozen=True):
    """Which part of a list is wanted."""

    limit: int
    after: str | None = None
    """The id of the last one that is known already."""
    ascending: bool = False
    """The oldest first."""
