"""A conversation as clients write it, and as chat templates take it. Knows no route."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from octavo.errors import InvalidParameter
from octavo.protocol.bounds import one_of

__all__ = ["CalledFunction", "ContentPart", "Message", "ToolCall", "conversation_of", "joined"]


class ContentPart(msgspec.Struct, kw_only=True):
    """A part of a message. Only text is read."""

    type: Annotated[str, one_of("text")]
    text: str | None = None


class CalledFunction(msgspec.Struct, kw_only=True):
    name: str
    arguments: str | dict[str, Any] = "{}"
    """A JSON object, as text or as it is."""


class ToolCall(msgspec.Struct, kw_only=True):
    """A call that the assistant made."""

    id: str = ""
    type: Annotated[str, one_of("function")] = "function"
    function: CalledFunction


class Message(msgspec.Struct, kw_only=True):
    """One turn of a conversation."""

    role: Annotated[str, one_of("developer", "system", "user", "assistant", "tool")]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    """Of the assistant's: what it called."""
    tool_call_id: str | None = None
    """Of a tool's: which call it answers."""
    reasoning_content: str | None = None
    """Of the assistant's: what it thought, for templates that take it back."""
    reasoning: str | None = None
    """The same by its other name."""
    refusal: str | None = None


def conversation_of(
    messages: list[Message], continue_final: bool | None, add_generation_prompt: bool | None
) -> list[dict[str, Any]]:
    """Messages as chat templates take them: content as text, arguments of calls as objects. Raises InvalidParameter."""
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


_ROLES = {
    "developer": "system",
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


def _turn(message: Message, name: str) -> dict[str, Any]:
    if message.role not in _ROLES:
        hint = "; functions are called through tools" if message.role == "function" else ""
        raise InvalidParameter(
            f"{name}.role is {message.role[:40]!r}; it must be one of {', '.join(_ROLES)}{hint}.",
            f"{name}.role",
        )
    content = message.content
    if isinstance(content, list):
        content = joined(content, f"{name}.content", "\n")
    if content is None:
        if message.role != "assistant":
            raise InvalidParameter(f"{name}.content is missing; it is required.", f"{name}.content")
        content = message.refusal or ""
    turn: dict[str, Any] = {"role": _ROLES[message.role], "content": content}
    for field in ("tool_calls", "reasoning_content", "reasoning"):
        if getattr(message, field) and message.role != "assistant":
            raise InvalidParameter(
                f"{name}.{field} is given with role {message.role!r}; it belongs to the assistant's messages.",
                f"{name}.{field}",
            )
    if message.tool_calls:
        turn["tool_calls"] = [
            _call(call, f"{name}.tool_calls[{i}]") for i, call in enumerate(message.tool_calls)
        ]
    if thought := message.reasoning_content or message.reasoning:
        turn["reasoning_content"] = thought
    if message.role == "tool":
        turn["tool_call_id"] = message.tool_call_id or ""
    return turn if message.name is None else {**turn, "name": message.name}


def _call(call: ToolCall, name: str) -> dict[str, Any]:
    if call.type != "function":
        raise InvalidParameter(
            f"{name}.type is {call.type[:40]!r}; calls are of type 'function'.", f"{name}.type"
        )
    arguments: Any = call.function.arguments
    written = call.function.arguments
    if isinstance(written, str):
        field = f"{name}.function.arguments"
        try:
            arguments = msgspec.json.decode(written or "{}")
        except (msgspec.DecodeError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            raise InvalidParameter(f"{field} is {written[:60]!r}; it is a JSON object, as text.", field)
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.function.name, "arguments": arguments},
    }
