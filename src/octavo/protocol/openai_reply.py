"""OpenAI's answers, whole and in chunks, for chat and completions. Knows their JSON, not where text comes from.

A chunk is a prefix, the text, a suffix: all but the text is written once per stream, since this runs per token.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import orjson

from octavo.protocol.chunk_tokens import ChunkTokens
from octavo.protocol.reply import Call, Choice, Usage
from octavo.protocol.sse import DONE, MEDIA_TYPE, error_event, event
from octavo.text.pieces import Piece

__all__ = ["ChatReply", "CompletionReply", "usage_json"]

_GOES_ON = b',"finish_reason":null'


def usage_json(usage: Usage) -> dict[str, Any]:
    """As completions and chat have it."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.total,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning,
            "accepted_prediction_tokens": usage.accepted,
            "rejected_prediction_tokens": usage.rejected,
        },
    }


class _Reply:
    """What both share."""

    media_type = MEDIA_TYPE
    prefix: ClassVar[str]
    """Of ids."""
    kind: ClassVar[str]
    chunk_kind: ClassVar[str]
    empty: ClassVar[bytes]
    """A chunk's middle that says nothing."""
    prompt_once: ClassVar[bool]
    """What is told of the prompt stands beside the choices, not in each."""

    def __init__(
        self,
        created_s: int,
        model: str,
        fingerprint: str,
        *,
        reply_id: str | None = None,
        include_usage: bool = False,
        token_ids: bool = False,
        continuous_usage: bool = False,
    ) -> None:
        """`include_usage`: chunks say `"usage": null`, a last one has the numbers. `token_ids`: the answer has those
        of prompt and answer. `continuous_usage`: each chunk has the numbers so far."""
        self.reply_id = reply_id or f"{self.prefix}-{uuid.uuid4().hex}"
        self._include_usage = include_usage
        self._token_ids = token_ids
        self._fields = {
            "id": self.reply_id,
            "created": created_s,
            "model": model,
            "system_fingerprint": fingerprint,
        }
        head = orjson.dumps({"object": self.chunk_kind, **self._fields})
        self._chunk_head = b"data: " + head[:-1] + b',"choices":[{"index":'
        usage = b',"usage":null' if include_usage and not continuous_usage else b""
        self._close = b"}]" + usage + b"}\n\n"
        self._open = _GOES_ON + self._close
        self._usage = usage
        self._tokens = (
            ChunkTokens(ids=token_ids, usage=continuous_usage, prompt_in_choice=not self.prompt_once)
            if token_ids or continuous_usage
            else None
        )
        self.tells_tokens = self._tokens is not None

    def finish(self, choice: Choice) -> bytes:
        end = b',"finish_reason":%b,"stop_reason":%b' % (
            orjson.dumps(choice.finish_reason),
            orjson.dumps(choice.stop_reason),
        )
        close = self._close if self._tokens is None else self._telling(self._tokens, choice)
        return self._chunk_head + b"%d" % choice.index + self.empty + end + close

    def _telling(self, tokens: ChunkTokens, choice: Choice, before: bytes = b"") -> bytes:
        """The end of a chunk that tells its tokens; `before`: the last of the choice's other fields."""
        return b"".join((
            before, tokens.of_choice(choice), b"}]", self._usage, tokens.of_event(choice), b"}\n\n"
        ))  # fmt: skip

    def closing(self, usage: Usage) -> bytes:
        if not self._include_usage:
            return DONE
        last = {"object": self.chunk_kind, **self._fields, "choices": [], "usage": usage_json(usage)}
        return event(orjson.dumps(last)) + DONE

    def failure(self, error: Exception) -> bytes:
        return error_event(error) + DONE

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        return orjson.dumps({
            "object": self.kind,
            **self._fields,
            "choices": [
                {
                    "index": choice.index,
                    **self._said(choice),
                    "logprobs": choice.logprobs,
                    "finish_reason": choice.finish_reason,
                    "stop_reason": choice.stop_reason,
                    **({"token_ids": choice.tokens} if self._token_ids else {}),
                    **({} if self.prompt_once else self._of_prompt(choice)),
                }
                for choice in choices
            ],
            **(self._of_prompt(choices[0]) if self.prompt_once else {}),
            "usage": usage_json(usage),
        })  # fmt: skip

    def _of_prompt(self, choice: Choice) -> dict[str, Any]:
        """vLLM's further fields."""
        fields: dict[str, Any] = {}
        if choice.prompt_logprobs is not None:
            fields["prompt_logprobs"] = choice.prompt_logprobs
        if self._token_ids:
            fields["prompt_token_ids"] = list(choice.prompt_tokens)
        return fields

    def _said(self, choice: Choice) -> dict[str, Any]:
        raise NotImplementedError


class CompletionReply(_Reply):
    """POST /v1/completions."""

    prefix = "cmpl"
    kind = chunk_kind = "text_completion"
    empty = b',"text":"","logprobs":null'
    prompt_once = False
    logprobs: Literal["chat", "completion"] = "completion"

    def begin(self, choice: Choice, usage: Usage) -> bytes:
        return b""

    def delta(self, choice: Choice, piece: Piece, logprobs: dict[str, Any] | None) -> bytes:
        return b"".join((
            self._chunk_head, b"%d" % choice.index, b',"text":', orjson.dumps(piece.text), b',"logprobs":',
            b"null" if logprobs is None else orjson.dumps(logprobs),
            self._open if self._tokens is None else self._telling(self._tokens, choice, _GOES_ON),
        ))  # fmt: skip

    def _said(self, choice: Choice) -> dict[str, Any]:
        return {"text": choice.text}


class ChatReply(_Reply):
    """POST /v1/chat/completions."""

    prefix = "chatcmpl"
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    empty = b',"delta":{},"logprobs":null'
    prompt_once = True
    logprobs: Literal["chat", "completion"] = "chat"

    def begin(self, choice: Choice, usage: Usage) -> bytes:
        """The role."""
        delta = b',"delta":{"role":"assistant","content":""},"logprobs":null'
        said = self._chunk_head + b"%d" % choice.index + delta
        if self._tokens is None:
            return said + self._open
        return said + _GOES_ON + b"}]" + self._usage + self._tokens.of_event(choice, first=True) + b"}\n\n"

    def delta(self, choice: Choice, piece: Piece, logprobs: dict[str, Any] | None) -> bytes:
        if piece.kind == "call":
            said = _call_delta(piece)
        else:
            name = b'{"content":' if piece.kind == "text" else b'{"reasoning_content":'
            said = name + orjson.dumps(piece.text)
        return b"".join((
            self._chunk_head, b"%d" % choice.index, b',"delta":', said, b'},"logprobs":',
            b"null" if logprobs is None else orjson.dumps(logprobs),
            self._open if self._tokens is None else self._telling(self._tokens, choice, _GOES_ON),
        ))  # fmt: skip

    def _said(self, choice: Choice) -> dict[str, Any]:
        message: dict[str, Any] = {
            "role": "assistant",
            "content": choice.text if choice.text or not choice.calls else None,
            "refusal": None,
        }
        if choice.reasoning:
            message["reasoning_content"] = choice.reasoning
        if choice.calls:
            message["tool_calls"] = [_call_json(call) for call in choice.calls]
        return {"message": message}


def _call_delta(piece: Piece) -> bytes:
    """A piece of a call, less the brace that ends its delta."""
    call: dict[str, Any] = {"index": piece.call}
    function: dict[str, Any] = {"arguments": piece.text}
    if piece.name is not None:
        call |= {"id": _call_id(), "type": "function"}
        function = {"name": piece.name, **function}
    return orjson.dumps({"tool_calls": [{**call, "function": function}]})[:-1]


def _call_json(call: Call) -> dict[str, Any]:
    return {
        "id": _call_id(),
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _call_id() -> str:
    return f"call_{uuid.uuid4().hex}"
