"""The shapes of OpenAI's answers, for the OpenAPI document and for tests. Knows no way to make one (openai_reply does).

Answers are written as bytes where they are made; these types say what comes out, and tests hold the two together.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

__all__ = [
    "ChatCompletion",
    "ChatCompletionChunk",
    "Completion",
    "Detokenized",
    "ModelCard",
    "ModelList",
    "Tokenized",
]

FinishReason = Literal["stop", "length", "tool_calls"]
Count = Annotated[int, Meta(ge=0)]


class _Shape(msgspec.Struct, forbid_unknown_fields=True):
    """What the others are: no field that is not written here."""


class PromptDetails(_Shape):
    cached_tokens: Count


class CompletionDetails(_Shape):
    accepted_prediction_tokens: Count
    rejected_prediction_tokens: Count
    reasoning_tokens: Count


class UsageReport(_Shape):
    """A prompt counts once, however many choices it has. Beside the choice of a chunk (`continuous_usage_stats`): that
    choice alone, so far, and without details."""

    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    prompt_tokens_details: PromptDetails | UnsetType = UNSET
    completion_tokens_details: CompletionDetails | UnsetType = UNSET


class CompletionLogprobs(_Shape):
    """Four lists, an entry for each token; the first of an echoed prompt has no probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[Count]


class PromptLogprob(_Shape):
    """vLLM's."""

    logprob: float
    rank: int | None
    """None where it is not among those asked for."""
    decoded_token: str


class CompletionChoice(_Shape):
    index: Count
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: int | str | UnsetType | None = UNSET
    """The stop string or token id that ended it, as vLLM has it."""
    token_ids: list[Count] | UnsetType = UNSET
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | UnsetType = UNSET
    prompt_token_ids: list[Count] | UnsetType = UNSET


class Completion(_Shape):
    """The answer of /v1/completions, whole or an event of its stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    """Equal fingerprints promise equal answers."""
    choices: list[CompletionChoice]
    usage: UsageReport | UnsetType | None = UNSET


class TopLogprob(_Shape):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(_Shape):
    content: list[TokenLogprob] | None
    refusal: None


class FunctionCall(_Shape):
    name: str | UnsetType | None = UNSET
    arguments: str | UnsetType | None = UNSET
    """JSON."""


class ToolCall(_Shape):
    function: FunctionCall
    id: str | UnsetType | None = UNSET
    type: Literal["function"] | UnsetType | None = UNSET
    index: Count | UnsetType = UNSET
    """Which call a piece of a stream belongs to."""


class ChatMessage(_Shape):
    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    reasoning_content: str | UnsetType | None = UNSET
    reasoning: str | UnsetType | None = UNSET
    tool_calls: list[ToolCall] | UnsetType | None = UNSET


class ChatChoice(_Shape):
    index: Count
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: int | str | None
    token_ids: list[Count] | UnsetType = UNSET


class ChatCompletion(_Shape):
    """The answer of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: UsageReport
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | UnsetType = UNSET
    prompt_token_ids: list[Count] | UnsetType = UNSET


class ChatDelta(_Shape):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType | None = UNSET
    reasoning: str | UnsetType | None = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChunkChoice(_Shape):
    index: Count
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[Count] | UnsetType = UNSET


class ChatCompletionChunk(_Shape):
    """An event of a streamed chat answer; the last one with `include_usage` has no choices."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: UsageReport | UnsetType | None = UNSET
    prompt_token_ids: list[Count] | UnsetType = UNSET


class ModelCard(_Shape):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int | UnsetType = UNSET
    """Tokens that prompt and answer may have together; there once the model is loaded."""


class ModelList(_Shape):
    object: Literal["list"]
    data: list[ModelCard]


class Tokenized(_Shape):
    """The answer of /tokenize."""

    count: Count
    max_model_len: int
    tokens: list[Count]
    token_strs: list[str] | None


class Detokenized(_Shape):
    """The answer of /detokenize."""

    prompt: str
