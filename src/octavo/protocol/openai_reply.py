"""OpenAI's answers, whole and in chunks, for chat and completions. Knows their JSON, not where text comes from.

A chunk is a prefix, the text, a suffix: all but the text is written once per stream, since this runs per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import orjson

from octavo.protocol.sse import event

__all__ = ["Choice", "ReplyHead", "Usage"]


class Usage(msgspec.Struct):
    """What one request used, in tokens. A prompt counts once however many choices it has."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    accepted: int = 0
    rejected: int = 0
    """Tokens that were guessed (from a prediction or otherwise) and were right, and those that were not."""

    def json(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {
                "accepted_prediction_tokens": self.accepted,
                "rejected_prediction_tokens": self.rejected,
            },
        }


class Choice(msgspec.Struct):
    """One finished choice."""

    index: int
    text: str
    finish_reason: str
    stop_reason: int | str | None
    logprobs: dict[str, Any] | None


class ReplyHead:
    """What every part of one answer repeats."""

    def __init__(
        self,
        api: Literal["chat", "completion"],
        reply_id: str,
        created_s: int,
        model: str,
        fingerprint: str,
        *,
        usage_follows: bool = False,
    ) -> None:
        """`usage_follows`: chunks say `"usage": null`, and a last one has the numbers."""
        self.chat = api == "chat"
        self.reply_id = reply_id
        self._fields = {
            "id": reply_id,
            "created": created_s,
            "model": model,
            "system_fingerprint": fingerprint,
        }
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        head = orjson.dumps({"object": kind, **self._fields})
        self._chunk_head = b"data: " + head[:-1] + b',"choices":[{"index":'
        usage = b',"usage":null' if usage_follows else b""
        self._open = b',"finish_reason":null}]' + usage + b"}\n\n"
        self._close = b"}]" + usage + b"}\n\n"
        self._before_text = b',"delta":{"content":' if self.chat else b',"text":'
        self._after_text = b'},"logprobs":' if self.chat else b',"logprobs":'

    def role(self, index: int) -> bytes:
        """The first chunk of a chat's choice."""
        delta = b',"delta":{"role":"assistant","content":""},"logprobs":null'
        return self._chunk_head + b"%d" % index + delta + self._open

    def delta(self, index: int, text: str, logprobs: dict[str, Any] | None = None) -> bytes:
        """A piece of one choice's text."""
        return b"".join((
            self._chunk_head, b"%d" % index, self._before_text, orjson.dumps(text), self._after_text,
            b"null" if logprobs is None else orjson.dumps(logprobs), self._open,
        ))  # fmt: skip

    def finish(self, index: int, reason: str, stop_reason: int | str | None) -> bytes:
        """The last chunk of one choice."""
        empty = b',"delta":{},"logprobs":null' if self.chat else b',"text":"","logprobs":null'
        end = b',"finish_reason":%b,"stop_reason":%b' % (orjson.dumps(reason), orjson.dumps(stop_reason))
        return self._chunk_head + b"%d" % index + empty + end + self._close

    def usage(self, usage: Usage) -> bytes:
        """The last chunk of a stream that was asked for usage."""
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return event(orjson.dumps({"object": kind, **self._fields, "choices": [], "usage": usage.json()}))

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """The answer in one piece."""
        kind = "chat.completion" if self.chat else "text_completion"
        return orjson.dumps({
            "object": kind,
            **self._fields,
            "choices": [self._choice(choice) for choice in choices],
            "usage": usage.json(),
        })  # fmt: skip

    def _choice(self, choice: Choice) -> dict[str, Any]:
        if self.chat:
            text: dict[str, Any] = {"message": {"role": "assistant", "content": choice.text, "refusal": None}}
        else:
            text = {"text": choice.text}
        return {
            "index": choice.index,
            **text,
            "logprobs": choice.logprobs,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
