"""Anthropic's answers, whole and as events. Knows their JSON, not where text comes from.

A content block is a part of the answer: text, thinking, the use of a tool. Its deltas are a prefix, the text, a suffix:
all but the text is written once per block, since this runs per token.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import orjson

from octavo.protocol.anthropic_errors import anthropic_error
from octavo.protocol.reply import Choice, Usage
from octavo.protocol.sse import MEDIA_TYPE
from octavo.text.pieces import Piece

__all__ = ["MessageReply", "anthropic_model", "anthropic_models"]

_DELTAS = {
    "text": (b"text_delta", b"text"),
    "reasoning": (b"thinking_delta", b"thinking"),
    "call": (b"input_json_delta", b"partial_json"),
}


def anthropic_model(name: str, created_s: int) -> dict[str, Any]:
    """A served model as Anthropic lists it."""
    created = datetime.fromtimestamp(created_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": "model", "id": name, "display_name": name, "created_at": created}


def anthropic_models(names: Sequence[str], created_s: int) -> dict[str, Any]:
    """All of them, as one page."""
    models = [anthropic_model(name, created_s) for name in names]
    return {"data": models, "has_more": False, "first_id": names[0], "last_id": names[-1]}


def _usage_json(usage: Usage) -> dict[str, Any]:
    """As Anthropic has it: what the prefix cache gave is no part of `input_tokens`."""
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
    }


class MessageReply:
    """POST /v1/messages. It has one choice."""

    media_type = MEDIA_TYPE
    logprobs: Literal["chat", "completion"] = "chat"
    tells_tokens = False

    def __init__(
        self, model: str, max_tokens: int, *, request_id: str | None = None, show_thinking: bool = True
    ) -> None:
        """`max_tokens`: an answer that was cut before has met the end of the context. `request_id` is told in errors.
        `show_thinking`: false leaves blocks of thinking empty."""
        self.reply_id = f"msg_{uuid.uuid4().hex}"
        self._model = model
        self._max_tokens = max_tokens
        self._request_id = request_id
        self._show_thinking = show_thinking
        self._block: tuple[str, int] | None = None
        """Kind and call of the open one."""
        self._index = -1
        self._head = self._tail = b""
        self._stop: dict[str, Any] = {}

    def begin(self, choice: Choice, usage: Usage) -> bytes:
        start = _usage_json(usage) | {"output_tokens": 0, "output_tokens_details": None}
        message = self._message([], {"stop_reason": None, "stop_sequence": None}, start)
        return _event("message_start", {"message": message})

    def delta(self, choice: Choice, piece: Piece, logprobs: dict[str, Any] | None) -> bytes:
        opened = b""
        if self._block != (piece.kind, piece.call):
            if not piece.text and piece.kind != "call":
                return b""
            opened = self._close() + self._open(piece)
        if not piece.text or not self._shown(piece):
            return opened
        return b"".join((opened, self._head, orjson.dumps(piece.text), b"}}\n\n"))

    def finish(self, choice: Choice) -> bytes:
        self._stop = self._reason(choice)
        return self._close()

    def closing(self, usage: Usage) -> bytes:
        end = {"delta": {**self._stop, "stop_details": None}, "usage": _usage_json(usage)}
        return _event("message_delta", end) + _event("message_stop", {})

    def failure(self, error: Exception) -> bytes:
        return _event("error", anthropic_error(error, self._request_id))

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        (choice,) = choices
        content = [_block_json(part, part.text if self._shown(part) else "") for part in choice.parts()]
        return orjson.dumps(self._message(content, self._reason(choice), _usage_json(usage)))

    def _message(
        self, content: list[dict[str, Any]], stop: dict[str, Any], usage: dict[str, Any]
    ) -> dict[str, Any]:
        return {
            "id": self.reply_id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            **stop,
            "stop_details": None,
            "usage": {**usage, "service_tier": "standard"},
        }

    def _reason(self, choice: Choice) -> dict[str, Any]:
        reason, sequence = "end_turn", None
        if choice.finish_reason == "length":
            all_of_it = len(choice.tokens) >= self._max_tokens
            reason = "max_tokens" if all_of_it else "model_context_window_exceeded"
        elif choice.finish_reason == "tool_calls":
            reason = "tool_use"
        elif isinstance(choice.stop_reason, str):
            reason, sequence = "stop_sequence", choice.stop_reason
        return {"stop_reason": reason, "stop_sequence": sequence}

    def _shown(self, piece: Piece) -> bool:
        return self._show_thinking or piece.kind != "reasoning"

    def _open(self, piece: Piece) -> bytes:
        self._block = piece.kind, piece.call
        self._index += 1
        kind, field = _DELTAS[piece.kind]
        self._head = b"".join((
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d' % self._index,
            b',"delta":{"type":"', kind, b'","', field, b'":',
        ))  # fmt: skip
        block = _block_json(piece, "")
        return _event("content_block_start", {"index": self._index, "content_block": block})

    def _close(self) -> bytes:
        if self._block is None:
            return b""
        self._block = None
        return _event("content_block_stop", {"index": self._index})


def _block_json(part: Piece, text: str) -> dict[str, Any]:
    """A block that says `text`."""
    match part.kind:
        case "text":
            return {"type": "text", "text": text, "citations": None}
        case "reasoning":
            return {"type": "thinking", "thinking": text, "signature": ""}
        case "call":
            return {
                "type": "tool_use",
                "id": f"toolu_{uuid.uuid4().hex}",
                "name": part.name,
                "input": _input(text),
            }


def _input(arguments: str) -> dict[str, Any] | orjson.Fragment:
    """The object that they are, as it was written, for orjson reads deeper nesting than it writes. Of arguments that
    were cut off, the text: half of a call must not look like a whole."""
    if not arguments:
        return {}
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        value = None
    return orjson.Fragment(arguments) if isinstance(value, dict) else {"INVALID_JSON": arguments}


def _event(kind: str, fields: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))
