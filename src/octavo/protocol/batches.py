"""OpenAI's batch objects: what is asked for, how it is told. Knows no line of a batch's files (see batch_lines)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from octavo.errors import InvalidParameter
from octavo.protocol.files import LIVES_S, expiry
from octavo.storage.records import BatchRecord, BatchStatus

__all__ = ["WINDOW_S", "BatchList", "BatchObject", "BatchUsage", "CreateBatchRequest", "batch_object"]

WINDOW_S = 24 * 3600
"""What a batch may take."""
_MAX_METADATA = (16, 64, 512)
"""Pairs; characters of a key and of a value."""


class ExpiresAfter(msgspec.Struct, kw_only=True):
    anchor: Annotated[str, Meta(extra_json_schema={"enum": ["created_at"]})]
    seconds: Annotated[int, Meta(extra_json_schema={"minimum": LIVES_S[0], "maximum": LIVES_S[1]})]


class CreateBatchRequest(msgspec.Struct, kw_only=True):
    """POST /v1/batches."""

    input_file_id: str
    endpoint: str
    completion_window: Annotated[str, Meta(extra_json_schema={"enum": ["24h"]})]
    metadata: dict[str, str] | None = None
    output_expires_after: ExpiresAfter | None = None
    """When the files with the results are removed; they are kept if this is not given."""

    def check(self, endpoints: Collection[str]) -> None:
        """Raise InvalidParameter for what cannot be asked for. `endpoints`: the routes that batches may use."""
        if self.endpoint not in endpoints:
            raise InvalidParameter(
                f"endpoint is {self.endpoint[:60]!r}; it is one of {', '.join(sorted(endpoints))}.",
                "endpoint",
            )
        if self.completion_window != "24h":
            raise InvalidParameter(
                f"completion_window is {self.completion_window[:40]!r}; it must be '24h'.",
                "completion_window",
            )
        pairs, key, value = _MAX_METADATA
        metadata = self.metadata or {}
        if len(metadata) > pairs:
            raise InvalidParameter(
                f"metadata has {len(metadata)} pairs; at most {pairs} are allowed.", "metadata"
            )
        for name, text in metadata.items():
            if len(name) > key or len(text) > value:
                raise InvalidParameter(
                    f"metadata.{name[:key]} is too long; keys have at most {key} characters, values {value}.",
                    f"metadata.{name[:key]}",
                )
        if self.output_expires_after is not None:
            after = self.output_expires_after
            expiry(after.anchor, after.seconds, "output_expires_after.{}")


class BatchError(msgspec.Struct, kw_only=True):
    code: str
    line: int | None
    """In the input file, from 1."""
    message: str
    param: str | None


class BatchErrors(msgspec.Struct, kw_only=True):
    object: Literal["list"]
    data: list[BatchError]


class RequestCounts(msgspec.Struct, kw_only=True):
    total: int
    completed: int
    failed: int


class InputDetails(msgspec.Struct, kw_only=True):
    cached_tokens: int = 0


class OutputDetails(msgspec.Struct, kw_only=True):
    reasoning_tokens: int = 0


class BatchUsage(msgspec.Struct, kw_only=True):
    """The tokens of all answers."""

    input_tokens: int = 0
    input_tokens_details: InputDetails = msgspec.field(default_factory=InputDetails)
    output_tokens: int = 0
    output_tokens_details: OutputDetails = msgspec.field(default_factory=OutputDetails)
    total_tokens: int = 0


class BatchObject(msgspec.Struct, kw_only=True):
    """A batch and how far it is. Times are Unix times in seconds."""

    id: str
    object: Literal["batch"]
    endpoint: str
    model: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: BatchStatus
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: BatchUsage | None
    """Once the batch has ended."""
    metadata: dict[str, str] | None


class BatchList(msgspec.Struct, kw_only=True):
    """A page of batches."""

    object: Literal["list"]
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


def batch_object(record: BatchRecord) -> dict[str, Any]:
    """A batch as OpenAI's object."""
    same = {
        name: getattr(record, name)
        for name in BatchObject.__struct_fields__
        if name not in ("object", "errors", "request_counts", "usage", "metadata")
    }
    errors = None if record.errors is None else {"object": "list", "data": msgspec.json.decode(record.errors)}
    given: dict[str, Any] = {
        **same,
        "object": "batch",
        "errors": errors,
        "request_counts": {"total": record.total, "completed": record.completed, "failed": record.failed},
        "usage": None if record.usage is None else msgspec.json.decode(record.usage),
        "metadata": None if record.metadata is None else msgspec.json.decode(record.metadata),
    }
    return {name: given[name] for name in BatchObject.__struct_fields__}
