"""The shapes of Anthropic's answers, for the OpenAPI document and for tests. Knows no way to make one."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

__all__ = ["AnthropicErrorReply", "MessageAnswer", "MessageEvent", "TokenCount"]

Count = Annotated[int, Meta(ge=0)]
StopReason = Literal["end_turn", "max_tokens", "model_context_window_exceeded", "stop_sequence", "tool_use"]


class AnthropicShape(msgspec.Struct, forbid_unknown_fields=True):
    """What the others are: no field that is not written here."""


class TextBlock(AnthropicShape, tag="text"):
    text: str
    citations: None


class ThinkingBlock(AnthropicShape, tag="thinking"):
    thinking: str
    signature: Literal[""]


class ToolUseBlock(AnthropicShape, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


class OutputDetails(AnthropicShape):
    thinking_tokens: Count


class MessageUsage(AnthropicShape):
    """The prompt has `input_tokens` + `cache_read_input_tokens` tokens."""

    input_tokens: Count
    cache_creation_input_tokens: Literal[0]
    cache_read_input_tokens: Count
    output_tokens: Count
    output_tokens_details: OutputDetails | None
    service_tier: Literal["standard"]


class MessageAnswer(AnthropicShape):
    """What POST /v1/messages answers."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextBlock | ThinkingBlock | ToolUseBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    stop_details: None
    usage: MessageUsage


class MessageEvent(msgspec.Struct):
    """One event of its stream; what else it has is said by its type."""

    type: Literal[
        "message_start", "content_block_start", "content_block_delta", "content_block_stop",
        "message_delta", "message_stop", "error",
    ]  # fmt: skip


class TokenCount(AnthropicShape):
    input_tokens: Count


class AnthropicErrorDetail(AnthropicShape):
    type: str
    message: str


class AnthropicErrorReply(AnthropicShape):
    """Anthropic's error object."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str | None
