"""Texts to token ids and back, as vLLM's `/tokenize` and `/detokenize` have it. Knows no tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from octavo.errors import InvalidParameter
from octavo.protocol.body import Body
from octavo.protocol.conversation import Message, conversation_of
from octavo.protocol.tools import ToolDefinition, tools_of
from octavo.protocol.unserved import REFUSED_OF_TOKENS

__all__ = ["DetokenizeRequest", "TokenizeRequest"]


class TokenizeRequest(Body, kw_only=True):
    """POST /tokenize: a text, or a conversation as the model would be given it."""

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = REFUSED_OF_TOKENS

    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    """false: no BOS before the prompt. A conversation has what its template says."""
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[ToolDefinition] | None = None
    return_token_strs: bool | None = None
    """true: each token's text too."""

    def conversation(self) -> list[dict[str, Any]] | None:
        """None where it is a text. Raises InvalidParameter."""
        if (self.prompt is None) == (self.messages is None):
            raise InvalidParameter(
                "prompt and messages: exactly one of them must be there; send a text or a conversation.",
                "prompt" if self.messages is None else "messages",
            )
        if self.messages is None:
            return None
        return conversation_of(self.messages, self.continue_final_message, self.add_generation_prompt)

    def definitions(self) -> list[dict[str, Any]] | None:
        """Of tools. Raises InvalidParameter."""
        tools = tools_of(self.tools, "none" if self.tools else None, None)
        return tools.definitions if tools else None


class DetokenizeRequest(Body, kw_only=True):
    """POST /detokenize."""

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = REFUSED_OF_TOKENS

    tokens: list[int]
