"""The shapes of OpenAI's Responses, for the OpenAPI document and for tests. Knows no way to make one
(responses_reply does)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

__all__ = ["EVENT", "InputTokens", "ItemList", "ResponseDeleted", "ResponseObject"]

Count = Annotated[int, Meta(ge=0)]
ItemStatus = Literal["in_progress", "completed", "incomplete"]

EVENT = {
    "type": "object",
    "properties": {"type": {"type": "string"}, "sequence_number": {"type": "integer", "minimum": 0}},
    "required": ["type", "sequence_number"],
}
"""One event of a stream; the rest of it depends on its type."""


class _Shape(msgspec.Struct, forbid_unknown_fields=True):
    """What the others are: no field that is not written here."""


class TokenLogprob(_Shape):
    token: str
    logprob: float
    bytes: list[Count]
    top_logprobs: list[TokenLogprob] | UnsetType = UNSET
    """Of the token itself; its alternatives have none."""


class InputText(_Shape, tag_field="type", tag="input_text"):
    text: str


class OutputText(_Shape, tag_field="type", tag="output_text"):
    text: str
    annotations: list[Any]
    logprobs: list[TokenLogprob]


class ReasoningText(_Shape, tag_field="type", tag="reasoning_text"):
    text: str


class SummaryText(_Shape, tag_field="type", tag="summary_text"):
    text: str


class MessageItem(_Shape, tag_field="type", tag="message"):
    id: str
    status: ItemStatus
    role: Literal["user", "system", "developer", "assistant"]
    content: list[InputText | OutputText]


class ReasoningItem(_Shape, tag_field="type", tag="reasoning"):
    id: str
    status: ItemStatus
    summary: list[SummaryText]
    content: list[ReasoningText]
    encrypted_content: UnsetType | None = UNSET


class FunctionCallItem(_Shape, tag_field="type", tag="function_call"):
    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str
    """A JSON object, as text."""


class FunctionCallOutputItem(_Shape, tag_field="type", tag="function_call_output"):
    id: str
    status: ItemStatus
    call_id: str
    output: str | list[InputText]


Item = MessageItem | ReasoningItem | FunctionCallItem | FunctionCallOutputItem


class ResponseFailure(_Shape):
    code: str
    message: str


class Incomplete(_Shape):
    reason: Literal["max_output_tokens"]


class InputDetails(_Shape):
    cached_tokens: Count
    cache_write_tokens: Count


class OutputDetails(_Shape):
    reasoning_tokens: Count


class ResponseUsage(_Shape):
    input_tokens: Count
    input_tokens_details: InputDetails
    output_tokens: Count
    output_tokens_details: OutputDetails
    total_tokens: Count


class ToldFunction(_Shape):
    type: Literal["function"]
    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool


class ToldReasoning(_Shape):
    effort: str | None
    summary: str | None


class ToldText(_Shape):
    format: dict[str, Any]
    verbosity: str


class ResponseObject(_Shape):
    """A response; what it says of its request is as the request had it, or the default."""

    id: str
    object: Literal["response"]
    created_at: Count
    completed_at: Count | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    background: bool
    error: ResponseFailure | None
    incomplete_details: Incomplete | None
    model: str
    output: list[Item]
    usage: ResponseUsage | None
    """Of one that is completed or incomplete."""
    system_fingerprint: str
    conversation: None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt: None
    prompt_cache_key: str | None
    reasoning: ToldReasoning
    safety_identifier: str | None
    service_tier: Literal["default"]
    store: bool
    temperature: float
    text: ToldText
    tool_choice: str | dict[str, Any]
    tools: list[ToldFunction]
    top_logprobs: Count
    top_p: float
    truncation: Literal["disabled"]
    user: str | None


class ItemList(_Shape):
    object: Literal["list"]
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputTokens(_Shape):
    object: Literal["response.input_tokens"]
    input_tokens: Count


class ResponseDeleted(_Shape):
    id: str
    object: Literal["response"]
    deleted: Literal[True]
