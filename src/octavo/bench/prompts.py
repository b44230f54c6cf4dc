"""The bodies of requests: a workload's prompts as JSON, ready to be sent. Knows the API's shape, no sockets.

A made-up prompt is parts, and most parts come again: a prefix that all share, the turns before in a session. The JSON
of a part is made once and kept, so that a body is mostly joined; a client that made each anew would be late
with others while it does.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from octavo.workload.draws import token_ids
from octavo.workload.request import WORDS, Part, Request

__all__ = ["Api", "Bodies", "Prompts", "Shape", "chat_turns"]

Api = Literal["chat", "completions"]
Prompts = Literal["ids", "text"]
KEPT_BYTES = 64 << 20
"""Of parts' JSON, and of answers."""


@dataclass(frozen=True)
class Shape:
    """How this server is asked."""

    model: str
    api: Api
    prompts: Prompts
    """`ids`: made-up prompts as token ids, of exact length. Real texts stay texts."""
    token_pool: tuple[int, ...] | None = None
    """Ids that are safe to use; None for all of [256, 32000)."""
    takes: frozenset[str] = frozenset()
    """Optional fields that the server accepts: those of `target.OPTIONAL`."""
    limit: str = "max_tokens"
    """What the field is called that limits the answer."""
    exact_output: bool = True
    """With `ignore_eos` and `min_tokens`, where they are taken: an answer is as long as the workload says."""
    extra: tuple[tuple[str, Any], ...] = ()
    """Fields for each body, which win over those made here."""


class _Store:
    """Bytes by key; what was used least lately goes first."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._size = 0
        self._found: OrderedDict[Any, bytes] = OrderedDict()

    def get(self, key: object) -> bytes | None:
        found = self._found.get(key)
        if found is not None:
            self._found.move_to_end(key)
        return found

    def put(self, key: object, value: bytes) -> None:
        self._size += len(value) - len(self._found.pop(key, b""))
        self._found[key] = value
        while self._size > self._most and self._found:
            self._size -= len(self._found.popitem(last=False)[1])


class Bodies:
    """Makes bodies, and keeps what they have in common."""

    def __init__(self, shape: Shape, kept_bytes: int = KEPT_BYTES) -> None:
        self.made_up = 0
        """Answers in later prompts that are not the server's: it did not say them in a form that could be used."""
        self._shape = shape
        self._parts = _Store(kept_bytes)
        self._answers = _Store(kept_bytes)
        self._ids = shape.prompts == "ids" and shape.api == "completions"
        pool = shape.token_pool
        self._below = 32_000 - 256 if pool is None else len(pool)

    def keeps(self, request: Request) -> Literal["text", "ids"] | None:
        """In what form `answered` wants the answer; None where nobody can follow it with parts."""
        if not request.parts:
            return None
        return "ids" if self._ids else "text"

    def answered(self, index: int, text: str, ids: Sequence[int]) -> None:
        """What the server really said to a request, for the prompts of those that follow it."""
        if self._ids:
            if ids:
                self._answers.put(index, orjson.dumps(list(ids))[1:-1])
        elif text:
            self._answers.put(index, orjson.dumps(text)[1:-1])

    def body(self, request: Request) -> bytes:
        """A request's whole body: JSON."""
        shape = self._shape
        fields: dict[str, Any] = {"model": shape.model, "stream": True}
        takes = shape.takes
        options = {name: True for name in ("include_usage", "continuous_usage_stats") if name in takes}
        if options:
            fields["stream_options"] = options
        if "temperature" in takes:
            fields["temperature"] = 0
        if "return_token_ids" in takes:
            fields["return_token_ids"] = True
        fields[shape.limit] = request.output_tokens
        if shape.exact_output:
            if "ignore_eos" in takes:
                fields["ignore_eos"] = True
            if "min_tokens" in takes:
                fields["min_tokens"] = request.output_tokens
        if request.priority and "priority" in takes:
            fields["priority"] = request.priority
        if request.tenant is not None:
            fields["user"] = request.tenant
        fields |= dict(shape.extra)
        return b'%b,"%b":%b}' % (orjson.dumps(fields)[:-1], *self._prompt(request))

    def _prompt(self, request: Request) -> tuple[bytes, bytes]:
        """The field's name and its JSON."""
        if self._shape.api == "chat":
            if request.messages is not None:
                return b"messages", orjson.dumps(request.messages)
            if request.text is not None:
                return b"messages", orjson.dumps([{"role": "user", "content": request.text}])
            if request.ids is not None:  # words stand for them: a chat takes no ids
                words = " ".join(WORDS[one % len(WORDS)] for one in request.ids)
                return b"messages", orjson.dumps([{"role": "user", "content": words}])
            turns = (
                b'{"role":"%b","content":"%b"}' % (role.encode(), self._text(request, parts))
                for role, parts in chat_turns(request.parts)
            )
            return b"messages", b"[%b]" % b",".join(turns)
        if request.ids is not None:
            return b"prompt", orjson.dumps(request.ids)
        if request.text is not None:
            return b"prompt", orjson.dumps(request.text)
        if request.messages is not None:
            said = "\n".join(str(one.get("content", "")) for one in request.messages)
            return b"prompt", orjson.dumps(said)
        if self._ids:
            pieces = [self._piece(request, part, self._made_ids) for part in request.parts]
            return b"prompt", b"[%b]" % b",".join(piece for piece in pieces if piece)
        return b"prompt", b'"%b"' % self._text(request, request.parts)

    def _text(self, request: Request, parts: Sequence[Part]) -> bytes:
        """Words with blanks between; an answer follows what it answered as the server sent it."""
        text = b""
        for part in parts:
            said = self._answers.get(part.answer_of) if part.answer_of is not None else None
            if said is not None:
                text += said
                continue
            piece = self._piece(request, part, self._made_words)
            text += b" " + piece if text and piece else piece
        return text

    def _piece(self, request: Request, part: Part, make: Callable[[int, Part], bytes]) -> bytes:
        if part.answer_of is not None:
            said = self._answers.get(part.answer_of)
            if said is not None:
                return said
            self.made_up += 1
        key = (request.seed, part.key, part.tokens)
        found = self._parts.get(key)
        if found is None:
            found = make(request.seed, part)
            self._parts.put(key, found)
        return found

    def _made_ids(self, seed: int, part: Part) -> bytes:
        pool = self._shape.token_pool
        numbers = token_ids(seed, part.key, 0, part.tokens, self._below)
        ids = [256 + one for one in numbers] if pool is None else [pool[one] for one in numbers]
        return orjson.dumps(ids)[1:-1]

    def _made_words(self, seed: int, part: Part) -> bytes:
        numbers = token_ids(seed, part.key, 0, part.tokens, len(WORDS))
        return " ".join([WORDS[one] for one in numbers]).encode()


def chat_turns(parts: Sequence[Part]) -> list[tuple[str, list[Part]]]:
    """Parts as turns: answers are the assistant's, all between them is the user's."""
    turns: list[tuple[str, list[Part]]] = []
    for part in parts:
        role = "user" if part.answer_of is None else "assistant"
        if turns and turns[-1][0] == role:
            turns[-1][1].append(part)
        else:
            turns.append((role, [part]))
    return turns
