"""The items of OpenAI's Responses: what clients send, as it is stored, and as messages of a chat. Knows no route.

An item's id holds the id of the response that it belongs to, so that a reference to one finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from octavo.errors import InvalidParameter
from octavo.protocol.conversation import CalledFunction, ContentPart, Message, ToolCall
from octavo.protocol.unknown import unknown_of

__all__ = ["Item", "answer_message", "item_id", "items_of", "messages_of", "response_of", "unknown_in_items"]

Item = dict[str, Any]
"""As OpenAI writes it: complete, with an id."""

_ID_DIGITS = 32
_TEXT_PARTS = frozenset({"input_text", "output_text", "text"})
_ROLES = ("user", "system", "developer", "assistant")
_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


_FIELDS: dict[str, frozenset[str]] = {
    "message": frozenset({"content", "role"}),
    "function_call": frozenset({"arguments", "call_id", "name"}),
    "function_call_output": frozenset({"call_id", "output"}),
    "reasoning": frozenset({"content", "encrypted_content", "summary"}),
    "item_reference": frozenset(),
}
_OF_ALL = frozenset({"id", "status", "type"})
_PART_FIELDS = {
    "output_text": frozenset({"annotations", "logprobs", "text", "type"}),
    "refusal": frozenset({"refusal", "type"}),
}
_TEXT_FIELDS = frozenset({"text", "type"})


def unknown_in_items(given: Any) -> Iterator[str]:
    """Paths such as `input[0].foo` of a request's `input` as it was written. What cannot be read is passed over."""
    for place, item in enumerate(given if isinstance(given, list) else ()):
        if not isinstance(item, dict):
            continue
        kind = item.get("type", "message" if "role" in item else "item_reference")
        if not isinstance(kind, str) or kind not in _FIELDS:
            continue
        name = f"input[{place}]"
        yield from unknown_of(item, _FIELDS[kind] | _OF_ALL, name)
        for field in ("content", "output", "summary"):
            parts = item.get(field)
            for i, part in enumerate(parts if isinstance(parts, list) else ()):
                if isinstance(part, dict):
                    fields = _PART_FIELDS.get(str(part.get("type")), _TEXT_FIELDS)
                    yield from unknown_of(part, fields, f"{name}.{field}[{i}]")


def item_id(kind: str, response_id: str, place: int, *, given: bool = False) -> str:
    """The id of an item of a response: of its output, or (`given`) of its input."""
    digits = response_id.removeprefix("resp_")
    return f"{_PREFIXES[kind]}_{digits}{place + (1 << 31 if given else 0):08x}"


def response_of(item: str) -> str | None:
    """The id of the response that an item's id belongs to; None for an id that is none of ours."""
    prefix, _, digits = item.partition("_")
    if prefix not in _PREFIXES.values() or len(digits) != _ID_DIGITS + 8:
        return None
    return f"resp_{digits[:_ID_DIGITS]}"


def items_of(given: str | Sequence[Any] | None, response_id: str) -> list[Item]:
    """A request's `input`, every item complete but for references. Raises InvalidParameter with the item's name."""
    if given is None:
        return []
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    items = []
    for place, item in enumerate(given):
        name = f"input[{place}]"
        if not isinstance(item, dict):
            raise InvalidParameter(f"{name} must be an object, not {item!r:.60}.", name)
        kind = item.get("type", "message" if "role" in item else None)
        if kind == "item_reference" or (kind is None and isinstance(item.get("id"), str)):
            items.append({"type": "item_reference", "id": _string(item, "id", name)})
            continue
        reader = _READERS.get(kind) if isinstance(kind, str) else None
        if reader is None:
            raise InvalidParameter(
                f"{name} is of type {kind!r:.60}; this server reads {', '.join(_PREFIXES)} and item_reference.",
                f"{name}.type",
            )
        own = item["id"] if isinstance(item.get("id"), str) and item["id"] else None
        assert isinstance(kind, str)
        items.append(
            {"id": own or item_id(kind, response_id, place, given=True), "type": kind} | reader(item, name)
        )
    return items


def messages_of(items: Sequence[Item], before: Sequence[Item] = ()) -> list[Message]:
    """Items as messages of a chat; the parts of one turn of the assistant become one. `before`: what was said before
    them. Raises InvalidParameter."""
    messages: list[Message] = []
    called = {item["call_id"] for item in before if item["type"] == "function_call"}
    turn: list[Item] = []
    for item in items:
        if _by_assistant(item):
            if item["type"] == "message" and any(one["type"] != "reasoning" for one in turn):
                messages.append(answer_message(turn))
                turn = []
            if item["type"] == "function_call":
                called.add(item["call_id"])
            turn.append(item)
            continue
        if turn:
            messages.append(answer_message(turn))
            turn = []
        if item["type"] == "message":
            parts = [ContentPart(type="text", text=part["text"]) for part in item["content"]]
            messages.append(Message(role=item["role"], content=parts))
            continue
        if item["call_id"] not in called:
            raise InvalidParameter(
                f"There is no function_call with the call_id {item['call_id'][:60]!r} before its output; send the "
                "call too, or the previous_response_id of the response that made it.",
                "input",
            )
        output = item["output"]
        if not isinstance(output, str):
            output = "".join(part["text"] for part in output)
        messages.append(Message(role="tool", content=output, tool_call_id=item["call_id"]))
    if turn:
        messages.append(answer_message(turn))
    return messages


def answer_message(items: Sequence[Item]) -> Message:
    """The items of one turn of the assistant as one message."""
    text, reasoning = "", ""
    calls: list[ToolCall] = []
    for item in items:
        if item["type"] == "message":
            text += "".join(part["text"] for part in item["content"])
        elif item["type"] == "reasoning":
            reasoning += "".join(part["text"] for part in item["content"] or item["summary"])
        elif item["status"] == "incomplete" and not _is_object(item["arguments"]):
            text += item["arguments"]  # cut off, and no call
        else:
            function = CalledFunction(name=item["name"], arguments=item["arguments"])
            calls.append(ToolCall(id=item["call_id"], function=function))
    return Message(
        role="assistant", content=text, reasoning_content=reasoning or None, tool_calls=calls or None
    )


def _is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, RecursionError):
        return False


def _by_assistant(item: Mapping[str, Any]) -> bool:
    return item["type"] in ("reasoning", "function_call") or item.get("role") == "assistant"


def _message(item: Mapping[str, Any], name: str) -> Item:
    role = item.get("role")
    if role not in _ROLES:
        raise InvalidParameter(
            f"{name}.role is {role!r:.60}; it must be one of {', '.join(_ROLES)}.", f"{name}.role"
        )
    texts = list(_texts(item.get("content"), f"{name}.content"))
    content: list[Item]
    if role != "assistant":
        content = [{"type": "input_text", "text": text} for text in texts]
    else:
        content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []} for text in texts]
    return {"status": _status(item), "role": role, "content": content}


def _function_call(item: Mapping[str, Any], name: str) -> Item:
    strings = {field: _string(item, field, name) for field in ("call_id", "name", "arguments")}
    return {"status": _status(item), **strings}


def _function_call_output(item: Mapping[str, Any], name: str) -> Item:
    output = item.get("output")
    if not isinstance(output, str):
        output = [{"type": "input_text", "text": text} for text in _texts(output, f"{name}.output")]
    return {"status": _status(item), "call_id": _string(item, "call_id", name), "output": output}


def _reasoning(item: Mapping[str, Any], name: str) -> Item:
    read: dict[str, list[dict[str, str]]] = {}
    for field, kind in (("summary", "summary_text"), ("content", "reasoning_text")):
        parts = item.get(field) or []
        if not isinstance(parts, list):
            raise InvalidParameter(f"{name}.{field} must be a list of parts.", f"{name}.{field}")
        read[field] = [
            {"type": kind, "text": _part(part, f"{name}.{field}[{i}]", frozenset({kind}))}
            for i, part in enumerate(parts)
        ]
    if item.get("encrypted_content"):
        raise InvalidParameter(
            f"{name}.encrypted_content cannot be read here: this server gives and takes reasoning as plain content.",
            f"{name}.encrypted_content",
        )
    return {"status": _status(item), **read}


_READERS: dict[str, Callable[[Mapping[str, Any], str], Item]] = {
    "message": _message,
    "function_call": _function_call,
    "function_call_output": _function_call_output,
    "reasoning": _reasoning,
}


def _status(item: Mapping[str, Any]) -> str:
    status = item.get("status")
    return status if status in ("in_progress", "incomplete") else "completed"


def _texts(content: Any, name: str) -> Iterator[str]:
    """The texts of a content: one string, or a list of parts."""
    if isinstance(content, str):
        yield content
        return
    if not isinstance(content, list):
        found = "missing" if content is None else f"{content!r:.60}"
        raise InvalidParameter(f"{name} is {found}; it must be a string or a list of parts.", name)
    for i, part in enumerate(content):
        yield _part(part, f"{name}[{i}]", _TEXT_PARTS)


def _part(part: Any, name: str, kinds: frozenset[str]) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "refusal" and "output_text" in kinds:
        return _string(part, "refusal", name)
    if not isinstance(kind, str) or kind not in kinds:
        raise InvalidParameter(
            f"{name} is of type {kind!r:.60}; this server reads text: {' or '.join(sorted(kinds - {'text'}))}.",
            name,
        )
    return _string(part, "text", name)


def _string(item: Mapping[str, Any], field: str, name: str) -> str:
    value = item.get(field)
    if not isinstance(value, str):
        found = "missing; it is required" if value is None else f"{value!r:.60}; it must be a string"
        raise InvalidParameter(f"{name}.{field} is {found}.", f"{name}.{field}")
    return value
