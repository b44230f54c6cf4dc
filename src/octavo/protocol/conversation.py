"""A conversation as clients write it, and as chat templates take it. Knows no route."""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.errors import InvalidParameter

__all__ = ["ContentPart", "Message", "conversation_of", "joined"]


class ContentPart(msgspec.Struct, kw_only=True):
    """A part of a message. Only text is read."""

    type: str
    text: str | None = None


class Message(msgspec.Struct, kw_only=True):
    """One turn of a conversation."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[Any] | None = None
    tool_call_id: str | None = None


def conversation_of(
    messages: list[Message], continue_final: bool | None, add_generation_prompt: bool | None
) -> list[dict[str, str]]:
    """Messages as chat templates take them: role and content as text. Raises InvalidParameter."""
    if not messages:
        raise InvalidParameter("messages is an empty list; send at least one message.", "messages")
    conversation = [_turn(message, f"messages[{i}]") for i, message in enumerate(messages)]
    if continue_final:
        if add_generation_prompt:
            raise InvalidParameter(
                "continue_final_message and add_generation_prompt exclude each other; set only one.",
                "continue_final_message",
            )
        if conversation[-1]["role"] != "assistant":
            raise InvalidParameter(
                "continue_final_message needs the assistant's message at the end of messages; "
                f"the last role is {conversation[-1]['role']!r}.",
                "continue_final_message",
            )
    return conversation


def joined(parts: list[ContentPart], name: str, between: str) -> str:
    """The text of a content's parts. `name`: of the field."""
    for i, part in enumerate(parts):
        if part.type == "text" and part.text is None:
            raise InvalidParameter(f"{name}[{i}].text is missing; it is required.", f"{name}[{i}].text")
        if part.type != "text":
            raise InvalidParameter(
                f"{name}[{i}] is of type {part.type[:40]!r}; this server reads parts of type 'text'.",
                f"{name}[{i}]",
            )
    return between.join(part.text or "" for part in parts)


def _turn(message: Message, name: str) -> dict[str, str]:
    roles = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant"}
    if message.tool_calls or message.tool_call_id or message.role in ("tool", "function"):
        raise InvalidParameter(
            f"{name} belongs to a tool call; tools are not supported by this server.", name
        )
    if message.role not in roles:
        raise InvalidParameter(
            f"{name}.role is {message.role[:40]!r}; it must be one of {', '.join(roles)}.", f"{name}.role"
        )
    content = message.content
    if isinstance(content, list):
        content = joined(content, f"{name}.content", "\n")
    if content is None:
        if message.role != "assistant":
            raise InvalidParameter(f"{name}.content is missing; it is required.", f"{name}.content")
        content = ""
    turn = {"role": roles[message.role], "content": content}
    return turn if message.name is None else {**turn, "name": message.name}
