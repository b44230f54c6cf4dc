"""Ollama's answers: lines of JSON, or one object. Knows their JSON, not where text comes from."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import orjson

from octavo.protocol.errors import error_object
from octavo.protocol.reply import Choice, Usage
from octavo.text.pieces import Piece

__all__ = ["NDJSON", "ChatLines", "GenerateLines", "load_answer", "now_text"]

NDJSON = "application/x-ndjson"


def now_text() -> str:
    """The time, as Ollama writes it."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


class _Lines:
    """What both have. One choice."""

    media_type = NDJSON
    logprobs: Literal["chat", "completion"] = "chat"
    tells_tokens = False
    prefix = ""

    def __init__(self, model: str, reply_id: str, begun_s: float) -> None:
        """`begun_s`: when the request came (time.monotonic)."""
        self.reply_id = reply_id
        self._model = model
        self._begun_s = begun_s
        self._choice = Choice(0)
        self._call: list[str] = []
        """Name and arguments of the call that is on its way: calls are told whole."""
        self._cut = ""

    def begin(self, choice: Choice, usage: Usage) -> bytes:
        return b""

    def delta(self, choice: Choice, piece: Piece, logprobs: dict[str, Any] | None) -> bytes:
        data = b""
        if piece.kind != "call" or piece.name is not None:
            data = self._flush()
        scores = _scores(logprobs)
        if piece.kind == "call":
            if piece.name is not None:
                self._call = [piece.name, piece.text]
            else:
                self._call[1] += piece.text
            return data + (self._line("", "", [], scores) if scores else b"")
        text, thought = (piece.text, "") if piece.kind == "text" else ("", piece.text)
        return data + self._line(text, thought, [], scores)

    def finish(self, choice: Choice) -> bytes:
        self._choice = choice
        return self._flush()

    def closing(self, usage: Usage) -> bytes:
        return self._final("", "", [], None, self._choice, usage) + b"\n"

    def failure(self, error: Exception) -> bytes:
        return orjson.dumps({"error": error_object(error)["error"]["message"]}) + b"\n"

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        (choice,) = choices
        calls = [_call_json(call.name, call.arguments) for call in choice.calls]
        cut = "".join(call.arguments for call, told in zip(choice.calls, calls, strict=True) if told is None)
        told = [call for call in calls if call is not None]
        return self._final(choice.text + cut, choice.reasoning, told, _scores(choice.logprobs), choice, usage)

    def _flush(self) -> bytes:
        """The call that is whole now. What was cut off is no call: it is told as text."""
        if not self._call:
            return b""
        name, arguments = self._call
        self._call = []
        call = _call_json(name, arguments)
        return self._line(arguments, "", [], None) if call is None else self._line("", "", [call], None)

    def _line(self, text: str, thought: str, calls: list[dict[str, Any]], scores: list[Any] | None) -> bytes:
        line = {
            "model": self._model,
            "created_at": now_text(),
            **self._said(text, thought, calls),
            "done": False,
        }
        if scores:
            line["logprobs"] = scores
        return orjson.dumps(line) + b"\n"

    def _final(
        self,
        text: str,
        thought: str,
        calls: list[dict[str, Any]],
        scores: list[Any] | None,
        choice: Choice,
        usage: Usage,
    ) -> bytes:
        end_s = time.monotonic()
        first_s = usage.first_output_s or end_s
        last = {
            "model": self._model,
            "created_at": now_text(),
            **self._said(text, thought, calls),
            "done": True,
            "done_reason": "length" if choice.finish_reason == "length" else "stop",
            **self._more(choice),
            "total_duration": _nanoseconds(end_s - self._begun_s),
            "load_duration": 0,
            "prompt_eval_count": usage.prompt,
            "prompt_eval_duration": _nanoseconds(first_s - self._begun_s),
            "eval_count": usage.completion,
            "eval_duration": _nanoseconds(end_s - first_s),
        }
        if scores:
            last["logprobs"] = scores
        return orjson.dumps(last)

    def _more(self, choice: Choice) -> dict[str, Any]:
        return {}

    def _said(self, text: str, thought: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
        raise NotImplementedError


class ChatLines(_Lines):
    """POST /api/chat."""

    def _said(self, text: str, thought: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if thought:
            message["thinking"] = thought
        if calls:
            message["tool_calls"] = calls
        return {"message": message}


class GenerateLines(_Lines):
    """POST /api/generate."""

    def __init__(self, model: str, reply_id: str, begun_s: float, context: Sequence[int] | None) -> None:
        """`context`: the prompt's ids, with which a later request may go on; None where it tells none."""
        super().__init__(model, reply_id, begun_s)
        self._context = context

    def _said(self, text: str, thought: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
        return {"response": text, "thinking": thought} if thought else {"response": text}

    def _more(self, choice: Choice) -> dict[str, Any]:
        if self._context is None:
            return {}
        # The model's own end token is written by the template, when it goes on.
        ended = choice.finish_reason == "stop" and choice.stop_reason is None
        tokens = choice.tokens[:-1] if ended else choice.tokens
        return {"context": [*self._context, *tokens]}


def load_answer(model: str, *, chat: bool, unload: bool) -> dict[str, Any]:
    """To a request that asks for nothing but the model."""
    said: dict[str, Any] = {"message": {"role": "assistant", "content": ""}} if chat else {"response": ""}
    reason = "unload" if unload else "load"
    return {"model": model, "created_at": now_text(), **said, "done": True, "done_reason": reason}


def _call_json(name: str, arguments: str) -> dict[str, Any] | None:
    """None where the arguments are no object: they were cut off."""
    arguments = arguments or "{}"
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return None
    # As it was written: orjson reads deeper nesting than it writes.
    given = {"name": name, "arguments": orjson.Fragment(arguments)}
    return {"function": given} if isinstance(value, dict) else None


def _scores(logprobs: dict[str, Any] | None) -> list[Any] | None:
    return logprobs["content"] if logprobs else None


def _nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e9))
