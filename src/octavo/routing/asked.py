"""What a request asks for, as far as it matters to who shall answer. Knows OpenAI's bodies, no tier and no network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import orjson

from octavo.errors import InvalidParameter
from octavo.routing.language import language_of

__all__ = ["CHAT", "COMPLETIONS", "EMBEDDINGS", "Asked"]

CHAT, COMPLETIONS, EMBEDDINGS = "/chat/completions", "/completions", "/embeddings"
"""Paths behind /v1."""

_BYTES_A_TOKEN = 4
"""Of English text; rules and the check of a context need no more."""
_TOKENS_A_MESSAGE = 4


@dataclass(frozen=True)
class Asked:
    """One request."""

    path: str
    body: dict[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case."""
    key: str | None = None
    """The name of the API key that it came with."""
    arrived_s: float = 0.0
    """By the gateway's clock."""

    @classmethod
    def read(
        cls, path: str, raw: bytes, headers: Mapping[str, str], key: str | None, arrived_s: float
    ) -> Asked:
        """Raises InvalidParameter for a body that no tier could read."""
        try:
            body = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise InvalidParameter(f"The body is no JSON: {error}.") from None
        if not isinstance(body, dict):
            raise InvalidParameter("The body is no JSON object; send one with model and messages.")
        if not isinstance(body.get("model", ""), str):
            raise InvalidParameter("model is no text; send a tier's name, or auto.", "model")
        return cls(path, body, headers, key, arrived_s)

    @property
    def model(self) -> str | None:
        """What the client called it; None: it did not say."""
        return self.body.get("model") or None

    @property
    def stream(self) -> bool:
        """The answer shall come in pieces."""
        return bool(self.body.get("stream"))

    @property
    def wants_usage(self) -> bool:
        """A stream shall end with a count of tokens."""
        options = self.body.get("stream_options")
        return isinstance(options, Mapping) and bool(options.get("include_usage"))

    @cached_property
    def prompt(self) -> str:
        """What a decider reads: the last that the user said, or the prompt; nothing where it is token ids."""
        if self.path == CHAT:
            for message in reversed(self._messages):
                if message.get("role") == "user":
                    return " ".join(_texts(message.get("content")))
            return ""
        return " ".join(_texts(self.body.get("prompt", self.body.get("input"))))

    @cached_property
    def prompt_tokens(self) -> int:
        """About so many: a fourth of its bytes. Token ids are counted."""
        if self.path == CHAT:
            given: Any = [message.get("content") for message in self._messages]
            size = sum(len(text.encode("utf-8", "replace")) for text in _texts(given))
            tools = self.body.get("tools")
            size += len(orjson.dumps(tools)) if tools else 0
            return size // _BYTES_A_TOKEN + _TOKENS_A_MESSAGE * len(self._messages)
        given = self.body.get("prompt", self.body.get("input"))
        ids = sum(1 for _ in _ids(given))
        return ids + sum(len(text.encode("utf-8", "replace")) for text in _texts(given)) // _BYTES_A_TOKEN

    @property
    def answer_tokens(self) -> int:
        """The most that it may have, where the client says so; else 0."""
        for name in ("max_completion_tokens", "max_tokens"):
            value = self.body.get(name)
            if isinstance(value, int) and value > 0:
                return value
        return 0

    @property
    def tools(self) -> bool:
        """There are functions that the model may call."""
        return bool(self.body.get("tools") or self.body.get("functions"))

    @property
    def json(self) -> bool:
        """The answer shall be JSON, or of a given form."""
        wanted = self.body.get("response_format")
        return isinstance(wanted, Mapping) and wanted.get("type") in ("json_object", "json_schema")

    @cached_property
    def images(self) -> bool:
        """There is something to look at."""
        return any(
            isinstance(part, Mapping) and part.get("type") in ("image_url", "input_image", "image")
            for message in self._messages
            if isinstance(content := message.get("content"), list)
            for part in content
        )

    @cached_property
    def language(self) -> str | None:
        """Of the prompt; None where it cannot be told."""
        return language_of(self.prompt)

    @cached_property
    def _messages(self) -> list[Mapping[str, Any]]:
        given = self.body.get("messages")
        return [one for one in given if isinstance(one, Mapping)] if isinstance(given, list) else []

    def for_tier(self, model: str, *, stream_usage: bool) -> bytes:
        """The body as the tier gets it. `stream_usage`: ask for a count of tokens with a stream."""
        body = {**self.body, "model": model}
        if stream_usage and self.stream and self.path != EMBEDDINGS:
            options = self.body.get("stream_options")
            body["stream_options"] = {
                **(options if isinstance(options, Mapping) else {}),
                "include_usage": True,
            }
        return orjson.dumps(body)


def _texts(content: Any) -> Iterator[str]:
    """A text, a list of them, or of a message's parts."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            yield from _texts(part.get("text") if isinstance(part, Mapping) else part)


def _ids(content: Any) -> Iterator[int]:
    if isinstance(content, int):
        yield content
    elif isinstance(content, list):
        for part in content:
            yield from _ids(part)
