"""Messages → the one text a model reads, by the model's own template. Knows no tokens and no HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

import jinja2
from jinja2 import meta

from octavo.errors import InvalidParameter
from octavo.text.sandbox import Hurried, Sandbox

__all__ = ["ChatTemplate"]


def _local_time() -> datetime:
    return datetime.now().astimezone()


class ChatTemplate:
    """A chat template (Jinja, in the dialect of Hugging Face's `apply_chat_template`).

    Compiled once, on first use. `source` None: the model has no template, and every rendering says so. `now` is
    the clock of the template's `strftime_now`.
    """

    def __init__(
        self,
        source: str | None,
        bos_token: str | None = None,
        eos_token: str | None = None,
        *,
        now: Callable[[], datetime] = _local_time,
    ) -> None:
        self.source = source
        self._tokens = {"bos_token": bos_token or "", "eos_token": eos_token or ""}
        self._now = now

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """The prompt. It names control tokens: encode it with `allow_special=True`.

        A message has a `role` and a `content` (a string, or a list of text parts, which are joined by line
        breaks). `kwargs` are further variables of the template. Raises InvalidParameter for messages of
        another shape, for what the template itself refuses (with its words), and where there is no template.
        """
        if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence):
            raise InvalidParameter(f"messages must be a list, not {type(messages).__name__}.", "messages")
        if not messages:
            raise InvalidParameter("messages is empty; send at least one message.", "messages")
        variables = {
            "documents": None,
            **kwargs,
            **self._tokens,
            "messages": [_flatten(message, f"messages[{i}]") for i, message in enumerate(messages)],
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        template = self._template
        try:
            return self._sandbox.run(template, variables)
        except Hurried:
            raise
        except Exception as error:
            reason = str(error) or type(error).__name__
            raise InvalidParameter(
                f"The model's chat template does not take these messages: {reason}", "messages"
            ) from error

    @cached_property
    def takes_tools(self) -> bool:
        """The template tells the model of tools."""
        if not self.source:
            return False
        return "tools" in meta.find_undeclared_variables(self._sandbox.parse(self.source))

    @cached_property
    def _sandbox(self) -> Sandbox:
        return Sandbox(self._now)

    @cached_property
    def _template(self) -> jinja2.Template:
        if not self.source:
            raise InvalidParameter(
                "The model has no chat template; use the completions endpoint, or a model made for chat.",
                "messages",
            )
        try:
            return self._sandbox.from_string(self.source)
        except Exception as error:  # a stray {% break %} is Python's SyntaxError
            raise InvalidParameter(
                f"The chat template cannot be compiled: {error}", "chat_template"
            ) from error


def _flatten(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The message with its content as one string."""
    if not isinstance(message, Mapping):
        raise InvalidParameter(f"{where} must be an object, not {message!r:.80}.", where)
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidParameter(
            f"{where}.role must be a name such as 'user', not {role!r:.80}.", f"{where}.role"
        )
    content = message.get("content")
    if content is None and message.get("tool_calls"):
        content = ""
    elif isinstance(content, Sequence) and not isinstance(content, (str, bytes)):
        content = "\n".join(_text(part, f"{where}.content[{i}]") for i, part in enumerate(content))
    if not isinstance(content, str):
        raise InvalidParameter(
            f"{where}.content must be a string or a list of text parts, not {content!r:.80}.",
            f"{where}.content",
        )
    return {**message, "content": content}


def _text(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind != "text":
        raise InvalidParameter(f"{where} is of type {kind!r:.60}; this model reads only text.", where)
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidParameter(f"{where}.text must be a string, not {text!r:.80}.", f"{where}.text")
    return text
