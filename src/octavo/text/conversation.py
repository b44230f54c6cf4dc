"""A conversation → the ids a model reads. What people wrote stays text: nobody can open another one's turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from octavo.errors import InvalidParameter
from octavo.text.chat import ChatTemplate
from octavo.text.tokenizer import Tokenizer

__all__ = ["encode_conversation", "guarded"]

_PRIVATE_USE = range(0xE000, 0xF900)


def encode_conversation(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    continue_final: bool = False,
    **kwargs: Any,
) -> list[int]:
    """The prompt's ids: the template's own control tokens, and everything else as text.

    `continue_final`: the last message stays open and is continued, instead of a new turn. `kwargs` are further
    variables of the template. Raises InvalidParameter as `ChatTemplate.render` and `Tokenizer.encode` do.
    """
    said, mark, end = guarded(tokenizer, {"messages": messages, "tools": tools, **kwargs})
    if continue_final and isinstance(said["messages"], list) and messages:
        said["messages"][-1] = _continued(said["messages"][-1], end)
    text = template.render(**said, add_generation_prompt=add_generation_prompt and not continue_final)
    if continue_final:
        text, found, _ = text.rpartition(end)
        if not found:
            raise InvalidParameter(
                "The last message cannot be continued: the model's chat template drops it; start a new turn.",
                "messages",
            )
    return tokenizer.encode(text, allow_special=True, mark=mark)


def guarded(tokenizer: Tokenizer, said: dict[str, Any]) -> tuple[dict[str, Any], str, str]:
    """A template's variables with every string guarded, the character that guards, and another one that is nowhere in
    them. Raises InvalidParameter."""
    mark, unused = _unused_characters(said)
    return _with_strings(said, lambda text: tokenizer.guard(text, mark)), mark, unused


def _unused_characters(value: Any) -> tuple[str, str]:
    """Two private-use characters that no string of `value` has."""
    used: set[str] = set()

    def note(text: str) -> str:
        used.update(text)
        return text

    _with_strings(value, note)
    free = (chr(code) for code in _PRIVATE_USE if chr(code) not in used)
    try:
        return next(free), next(free)
    except StopIteration:
        raise InvalidParameter(
            "messages use up all private-use characters of Unicode; leave out at least two.", "messages"
        ) from None


def _with_strings(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of plain data with every string but keys changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _with_strings(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_strings(item, change) for item in value]
    return value


def _continued(message: Any, end: str) -> Any:
    """The message with `end` behind its text."""
    if not isinstance(message, dict):
        return message  # refused when it is rendered
    content = message.get("content")
    if isinstance(content, list) and content and isinstance(content[-1], dict):
        last = content[-1]
        content = [*content[:-1], {**last, "text": f"{last.get('text', '')}{end}"}]
    elif isinstance(content, str):
        content += end
    return {**message, "content": content}
