"""The shapes of Ollama's answers, for the OpenAPI document and for tests. Knows no way to make one."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

__all__ = [
    "ChatLine",
    "EmbedAnswer",
    "EmbeddingsAnswer",
    "GenerateLine",
    "ModelNames",
    "OllamaErrorReply",
    "RunningModels",
    "Shown",
]

Count = Annotated[int, Meta(ge=0)]


class _Line(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One line of a stream, or the whole answer; what is not always there is in the last one."""

    model: str
    created_at: str
    done: bool
    done_reason: str | UnsetType = UNSET
    total_duration: Count | UnsetType = UNSET
    """Nanoseconds, as the next ones."""
    load_duration: Count | UnsetType = UNSET
    prompt_eval_count: Count | UnsetType = UNSET
    prompt_eval_duration: Count | UnsetType = UNSET
    """To the first token, waiting included."""
    eval_count: Count | UnsetType = UNSET
    eval_duration: Count | UnsetType = UNSET
    logprobs: list[dict[str, Any]] | UnsetType = UNSET


class ChatLineMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    role: str
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[dict[str, Any]] | UnsetType = UNSET


class ChatLine(_Line, kw_only=True):
    """Of /api/chat."""

    message: ChatLineMessage


class GenerateLine(_Line, kw_only=True):
    """Of /api/generate."""

    response: str
    thinking: str | UnsetType = UNSET
    context: list[int] | UnsetType = UNSET


class Details(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class ModelEntry(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    model: str
    modified_at: str
    size: Count
    """Bytes."""
    digest: str
    """sha256 of the model's file."""
    details: Details


class ModelNames(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Of /api/tags."""

    models: list[ModelEntry]


class RunningModel(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    model: str
    size: Count
    digest: str
    details: Details
    expires_at: str
    size_vram: Count
    context_length: Count


class RunningModels(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Of /api/ps."""

    models: list[RunningModel]


class Shown(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Of /api/show."""

    modelfile: str
    parameters: str
    template: str
    modified_at: str
    details: Details
    model_info: dict[str, Any]
    capabilities: list[str]


class EmbedAnswer(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Of /api/embed."""

    model: str
    embeddings: list[list[float]]
    total_duration: Count
    load_duration: Count
    prompt_eval_count: Count


class EmbeddingsAnswer(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Of /api/embeddings."""

    embedding: list[float]


class OllamaErrorReply(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Ollama's error object."""

    error: str
