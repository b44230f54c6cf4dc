"""OpenAI's Responses: the answer, whole and as events. Knows their JSON, not where text comes from or is stored.

The object grows with the events, and the whole answer is what the events leave: the two cannot differ.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import orjson

from octavo.protocol.errors import error_object
from octavo.protocol.reply import Choice, Usage
from octavo.protocol.response_items import Item, item_id
from octavo.protocol.sse import MEDIA_TYPE
from octavo.text.pieces import Piece

__all__ = ["FINAL", "ResponsesReply", "response_usage"]

FINAL = frozenset({"completed", "failed", "cancelled", "incomplete"})
"""The statuses of responses that have ended."""

_OBFUSCATED_BYTES = 32
"""Deltas are filled up to a multiple of this."""


def response_usage(usage: Usage) -> dict[str, Any]:
    """As responses have it. Nothing is paid for writing to the cache, so nothing is counted as written."""
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.total,
    }


class _Growing:
    """An item of the output that has not ended."""

    def __init__(self, item: Item, index: int, piece: Piece) -> None:
        self.item = item
        self.kind = piece.kind
        self.call = piece.call
        self.texts: list[str] = []
        self.place = {"item_id": item["id"], "output_index": index}
        if self.kind != "call":
            self.place["content_index"] = 0
        self.delta_head = _head(_DELTAS[self.kind], self.place)

    def takes(self, piece: Piece) -> bool:
        return piece.kind == self.kind and piece.call == self.call


_DELTAS = {
    "text": "response.output_text.delta",
    "reasoning": "response.reasoning_text.delta",
    "call": "response.function_call_arguments.delta",
}


def _head(kind: str, place: Mapping[str, Any]) -> bytes:
    """An event up to what changes from one to the next."""
    return b"event: %b\ndata: %b" % (kind.encode(), orjson.dumps({"type": kind, **place})[:-1])


class ResponsesReply:
    """POST /v1/responses. `response` is the object as it is now.

    Log-probabilities of all tokens, also those that became no text, are told with the first message, which then stays
    open until the end.
    """

    media_type = MEDIA_TYPE
    logprobs: Literal["chat", "completion"] = "chat"
    tells_tokens = False

    def __init__(
        self,
        response_id: str,
        created_s: int,
        model: str,
        fingerprint: str,
        echo: Mapping[str, Any],
        *,
        logprobs: bool = False,
        obfuscated: bool = False,
        ended: Callable[[ResponsesReply], None] = lambda _: None,
    ) -> None:
        """`echo`: what it says again of its request. `ended` is called once, when it has its final status and nothing
        of it will be changed; not for one that nobody waited for."""
        self.reply_id = response_id
        self.choice: Choice | None = None
        """When it has finished."""
        self.response: dict[str, Any] = {
            "id": response_id,
            "object": "response",
            "created_at": created_s,
            "completed_at": None,
            "status": "queued" if echo["background"] else "in_progress",
            "error": None,
            "incomplete_details": None,
            "model": model,
            "output": [],
            "usage": None,
            "conversation": None,
            "prompt": None,
            "system_fingerprint": fingerprint,
            **echo,
        }
        self._ended = ended
        self._wants_logprobs = logprobs
        self._obfuscated = obfuscated
        self._number = 0
        self._growing: _Growing | None = None
        self._message: _Growing | None = None
        """The one that has the log-probabilities."""
        self._scores: list[Any] = []
        self._told_scores = 0

    def queued(self) -> bytes:
        """The first events of one that runs in the background."""
        return self._with_response("response.created") + self._with_response("response.queued")

    def begin(self, choice: Choice, usage: Usage) -> bytes:
        self.response["status"] = "in_progress"
        created = b"" if self._number else self._with_response("response.created")
        return created + self._with_response("response.in_progress")

    def delta(self, choice: Choice, piece: Piece, logprobs: dict[str, Any] | None) -> bytes:
        if logprobs is not None:
            self._scores += logprobs["content"]
        if not piece.text and piece.name is None:
            return b""
        growing, before = self._growing, b""
        if growing is None or not growing.takes(piece):
            before = self._leave() + self._start(piece)
            growing = self._growing
            assert growing is not None
        if not piece.text:
            return before
        growing.texts.append(piece.text)
        text = orjson.dumps(piece.text)
        more = b""
        if growing.kind == "text":
            more = b',"logprobs":[]'
            if growing is self._message and self._told_scores < len(self._scores):
                more = b',"logprobs":' + orjson.dumps(self._scores[self._told_scores :])
                self._told_scores = len(self._scores)
        if self._obfuscated:
            more += b',"obfuscation":"%b"' % _letters(-len(text) % _OBFUSCATED_BYTES)
        number = self._number
        self._number += 1
        return b'%b%b,"delta":%b%b,"sequence_number":%d}\n\n' % (
            before,
            growing.delta_head,
            text,
            more,
            number,
        )

    def finish(self, choice: Choice) -> bytes:
        self.choice = choice
        start = b"" if self._growing else self._start(Piece(""))
        growing, message = self._growing, self._message
        assert growing is not None
        kept_open = message is not None and message is not growing and self._wants_logprobs
        before = self._close(message, "completed") if message and kept_open else b""
        last = self._close(growing, "incomplete" if _incomplete(choice) else "completed")
        self._growing = self._message = None
        return start + before + last

    def closing(self, usage: Usage) -> bytes:
        choice = self.choice
        assert choice is not None
        if _incomplete(choice):
            # A stop string within a call is no reason that OpenAI has a word for.
            details = {"reason": "max_output_tokens"} if choice.finish_reason == "length" else None
            self.response |= {"status": "incomplete", "incomplete_details": details}
        else:
            self.response |= {"status": "completed", "completed_at": int(time.time())}
        self.response["usage"] = response_usage(usage)
        return self._end()

    def failure(self, error: Exception) -> bytes:
        told = error_object(error)["error"]
        self.response |= {
            "status": "failed",
            "error": {"code": "server_error", "message": told["message"]},
        }
        event = {"code": told["code"], "message": told["message"], "param": told["param"]}
        return self._event("error", event) + self._end()

    def cancelled(self) -> bytes:
        """Its end where a client wanted it."""
        self.response["status"] = "cancelled"
        return self._end()

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        [choice] = choices
        if choice.finish_reason is None:  # nobody waits for it any more, and it is not to be kept
            return orjson.dumps(self.response)
        self.begin(choice, usage)
        logprobs = choice.logprobs
        for piece in choice.parts():
            self.delta(choice, piece, logprobs)
            logprobs = None
        self.delta(choice, Piece(""), logprobs)
        self.finish(choice)
        self.closing(usage)
        return orjson.dumps(self.response)

    def _end(self) -> bytes:
        """The last event, after which the object does not change."""
        for growing in (self._growing, self._message):
            if growing is not None and growing.item["status"] == "in_progress":
                self._fill(growing, "incomplete")
        self._growing = self._message = None
        status = self.response["status"]
        told = {"cancelled": "incomplete"}.get(status, status)  # which has no event of its own
        last = self._with_response(f"response.{told}")
        self._ended(self)
        return last

    def _start(self, piece: Piece) -> bytes:
        """A new item, and its first part."""
        output = self.response["output"]
        index = len(output)
        item: Item
        if piece.kind == "call":
            item = {
                "id": item_id("function_call", self.reply_id, index),
                "type": "function_call",
                "status": "in_progress",
                "call_id": f"call_{self.reply_id.removeprefix('resp_')}{index:08x}",
                "name": piece.name,
                "arguments": "",
            }
        elif piece.kind == "text":
            item = {
                "id": item_id("message", self.reply_id, index),
                "type": "message",
                "status": "in_progress",
                "role": "assistant",
                "content": [],
            }
        else:
            item = {
                "id": item_id("reasoning", self.reply_id, index),
                "type": "reasoning",
                "status": "in_progress",
                "summary": [],
                "content": [],
                "encrypted_content": None,
            }
        output.append(item)
        self._growing = growing = _Growing(item, index, piece)
        if piece.kind == "text" and self._message is None:
            self._message = growing
        added = self._event("response.output_item.added", {"output_index": index, "item": item})
        if piece.kind == "call":
            return added
        part = self._part(growing, "", [])
        return added + self._event("response.content_part.added", {**growing.place, "part": part})

    def _leave(self) -> bytes:
        """Another item comes."""
        growing, self._growing = self._growing, None
        if growing is None or (growing is self._message and self._wants_logprobs):
            return b""
        return self._close(growing, "completed")

    def _close(self, growing: _Growing, status: str) -> bytes:
        """It is complete."""
        text = "".join(growing.texts)
        item = growing.item
        self._fill(growing, status)
        if growing.kind == "call":
            done = self._event(
                "response.function_call_arguments.done",
                {**growing.place, "name": item["name"], "arguments": text},
            )
        else:
            part = item["content"][0]
            name = "output_text" if growing.kind == "text" else "reasoning_text"
            said = {"text": text, "logprobs": part["logprobs"]} if growing.kind == "text" else {"text": text}
            done = self._event(f"response.{name}.done", {**growing.place, **said}) + self._event(
                "response.content_part.done", {**growing.place, "part": part}
            )
        index = growing.place["output_index"]
        return done + self._event("response.output_item.done", {"output_index": index, "item": item})

    def _fill(self, growing: _Growing, status: str) -> None:
        """Give the item what it has by now."""
        text = "".join(growing.texts)
        growing.item["status"] = status
        if growing.kind == "call":
            growing.item["arguments"] = text
        else:
            scores = self._scores if growing is self._message else []
            growing.item["content"] = [self._part(growing, text, scores)]

    def _part(self, growing: _Growing, text: str, scores: list[Any]) -> dict[str, Any]:
        if growing.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": scores}

    def _with_response(self, kind: str) -> bytes:
        return self._event(kind, {"response": self.response})

    def _event(self, kind: str, fields: Mapping[str, Any]) -> bytes:
        data = orjson.dumps({"type": kind, **fields, "sequence_number": self._number})
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


def _letters(count: int) -> bytes:
    return secrets.token_hex((count + 1) // 2)[:count].encode()


def _incomplete(choice: Choice) -> bool:
    return choice.finish_reason == "length" or choice.cut_off
