"""A streamed answer, read event by event into the numbers of `record.Chunk`. Knows OpenAI's chunks, no sockets.

Of chats and completions alike: text of the answer, of the reasoning before it and of tool calls, the reason of the
end, the counts of tokens, errors after the first byte. Servers add fields of their own, which are passed over. What
is read of those that some add: vLLM's `usage` in each event and `token_ids` of each choice, `reasoning_content`
(DeepSeek, SGLang) or `reasoning` (vLLM, OpenRouter), text as a list of parts (Mistral).
"""

from __future__ import annotations

from array import array
from typing import Any, Literal

import msgspec

from octavo.bench.counting import count_tokens
from octavo.bench.record import Chunk, Kind
from octavo.bench.sentence import FirstSentence

__all__ = ["AnswerReader", "Keep", "error_message"]

Keep = Literal["text", "ids"] | None
"""What of an answer a later prompt will need."""

_ROW = 6
_NONE = -1
"""In a row: not said."""


class _Details(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct, gc=False):
    function: _Function | None = None


class _Delta(msgspec.Struct, gc=False):
    role: str | None = None
    content: str | list[dict[str, Any]] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Logprobs(msgspec.Struct, gc=False):
    content: list[msgspec.Raw] | None = None
    tokens: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct, gc=False):
    index: int = 0
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None


class _Event(msgspec.Struct, gc=False):
    id: str | None = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode
_ANSWER, _REASONING, _TOOL, _ROLE = int(Kind.ANSWER), int(Kind.REASONING), int(Kind.TOOL), int(Kind.ROLE)
_FINISH, _USAGE, _ERROR, _DONE = int(Kind.FINISH), int(Kind.USAGE), int(Kind.ERROR), int(Kind.DONE)
_SENTENCE, _EMPTY = int(Kind.SENTENCE), int(Kind.EMPTY)


class AnswerReader:
    """One answer. Its events are kept as rows of numbers until `chunks`: millions of them are usual."""

    __slots__ = (
        "_finish_at", "_keep", "_pieces", "_rows", "_sentence", "_token_ids", "cached_tokens", "done_us",
        "error", "finish_reason", "first_text_us", "id", "input_tokens", "output_tokens",
        "reasoning_tokens", "texts",
    )  # fmt: skip

    def __init__(self, keep: Keep = None) -> None:
        self.id: str | None = None
        self.finish_reason: str | None = None
        self.error: str | None = None
        """What the server said of an error, or what is wrong with an event."""
        self.input_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.output_tokens: int | None = None
        self.reasoning_tokens: int | None = None
        self.first_text_us: int | None = None
        """Of the first event with text of any kind."""
        self.done_us: int | None = None
        """Of `[DONE]`."""
        self.texts = 0
        """Events with text."""
        self._keep = keep
        self._rows = array("q")
        """Of each event _ROW numbers: when, characters, kind, usage so far, token ids, logprobs."""
        self._finish_at: int | None = None
        self._sentence: FirstSentence | None = FirstSentence()
        self._pieces: list[str] = []
        self._token_ids = array("q")

    def read(self, data: bytes, at_us: int) -> None:
        """One event's data."""
        if data == b"[DONE]":
            self.done_us = at_us
            self._rows.extend((at_us, 0, _DONE, _NONE, 0, 0))
            return
        try:
            event = _decode(data)
        except msgspec.MsgspecError as error:
            shown = data[:80].decode(errors="replace")
            self._failed(f"event {len(self._rows) // _ROW} cannot be read ({error}): {shown}", at_us)
            return
        if event.error is not None:
            self._failed(_message_of(event.error), at_us)
            return
        if self.id is None:
            self.id = event.id
        kind = characters = ids = logprobs = 0
        choices = event.choices
        if choices:
            for choice in choices:
                delta = choice.delta
                if delta is not None:
                    if (text := delta.content) is not None and text != "":
                        if not isinstance(text, str):
                            text, thought = _parts(text)
                            if thought:
                                kind |= _REASONING
                                characters += len(thought)
                        if text:
                            kind |= _ANSWER
                            characters += len(text)
                            kind |= self._said(text, choice.index)
                    if text := delta.reasoning_content or delta.reasoning:
                        kind |= _REASONING
                        characters += len(text)
                    if text := delta.refusal:
                        kind |= _ANSWER
                        characters += len(text)
                        kind |= self._said(text, choice.index)
                    if delta.tool_calls:
                        kind |= _TOOL
                        characters += _called(delta.tool_calls)
                    if delta.role is not None:
                        kind |= _ROLE
                elif text := choice.text:
                    kind |= _ANSWER
                    characters += len(text)
                    kind |= self._said(text, choice.index)
                if choice.finish_reason is not None:
                    kind |= _FINISH
                    self.finish_reason = choice.finish_reason
                    self._finish_at = len(self._rows) // _ROW
                if choice.token_ids:
                    ids += len(choice.token_ids)
                    if self._keep == "ids" and choice.index == 0:
                        self._token_ids.extend(choice.token_ids)
                if choice.logprobs is not None:
                    logprobs += len(choice.logprobs.content or choice.logprobs.tokens or ())
            if not kind:
                kind = _EMPTY
        counted = _NONE
        usage = event.usage
        if usage is not None:
            kind |= _USAGE
            self._used(usage)
            if choices and usage.completion_tokens is not None:
                counted = usage.completion_tokens
        if characters:
            if self.first_text_us is None:
                self.first_text_us = at_us
            self.texts += 1
        self._rows.extend((at_us, characters, kind, counted, ids, logprobs))

    def close(self) -> None:
        """The stream has ended, well or not."""
        if self._sentence is not None and (at := self._sentence.close()) is not None:
            self._rows[at * _ROW + 2] |= _SENTENCE
        self._sentence = None

    def forget(self) -> None:
        """Lets go of what was kept of the answer."""
        self._pieces.clear()
        del self._token_ids[:]

    def chunks(self) -> tuple[list[Chunk], str, int | None]:
        """The events, how their tokens were counted, and the answer's tokens. Call `close` before."""
        times, characters, kinds, *said = (self._rows[column::_ROW] for column in range(_ROW))
        usage, ids, logprobs = said
        counts = count_tokens(
            characters,
            self._finish_at,
            total=self.output_tokens,
            usage=[None if one == _NONE else one for one in usage],
            ids=ids,
            logprobs=logprobs,
        )
        rows = zip(times, counts.tokens, characters, kinds, strict=True)
        return [Chunk(*row) for row in rows], counts.counted, counts.total

    @property
    def text(self) -> str:
        """The answer's, where it was to be kept."""
        return "".join(self._pieces)

    @property
    def token_ids(self) -> array[int]:
        """The answer's, where they were to be kept and the server told them."""
        return self._token_ids

    def _said(self, text: str, index: int) -> int:
        """Text of the answer in the event that is being read; what its kind has more."""
        if index:
            return 0
        if self._keep == "text":
            self._pieces.append(text)
        here = len(self._rows) // _ROW
        if self._sentence is None or (at := self._sentence.feed(text, here)) is None:
            return 0
        self._sentence = None
        if at == here:
            return _SENTENCE
        self._rows[at * _ROW + 2] |= _SENTENCE
        return 0

    def _failed(self, message: str, at_us: int) -> None:
        self.error = self.error or message
        self._rows.extend((at_us, 0, _ERROR, _NONE, 0, 0))

    def _used(self, usage: _Usage) -> None:
        if usage.prompt_tokens is not None:
            self.input_tokens = usage.prompt_tokens
        if usage.completion_tokens is not None:
            self.output_tokens = usage.completion_tokens
        if (details := usage.prompt_tokens_details) is not None and details.cached_tokens is not None:
            self.cached_tokens = details.cached_tokens
        if (details := usage.completion_tokens_details) is not None and details.reasoning_tokens is not None:
            self.reasoning_tokens = details.reasoning_tokens


def error_message(data: bytes) -> str:
    """What a server says of an error, from its answer's body: JSON of several shapes, or text. Empty if nothing."""
    try:
        value = msgspec.json.decode(data)
    except msgspec.MsgspecError:
        return " ".join(data.decode(errors="replace").split())
    return _message_of(value.get("error", value) if isinstance(value, dict) else value)


def _message_of(value: Any) -> str:
    if isinstance(value, dict):
        for name in ("message", "detail", "error"):
            if isinstance(value.get(name), str):
                return str(value[name])
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _parts(parts: list[dict[str, Any]]) -> tuple[str, str]:
    """Of text given as a list: the answer and the reasoning."""
    said, thought = [], []
    for part in parts:
        if isinstance(text := part.get("text"), str):
            said.append(text)
        elif isinstance(inner := part.get("thinking"), list):
            thought += [
                one["text"] for one in inner if isinstance(one, dict) and isinstance(one.get("text"), str)
            ]
        elif isinstance(inner, str):
            thought.append(inner)
    return "".join(said), "".join(thought)


def _called(calls: list[_Call]) -> int:
    """Characters of names and arguments."""
    return sum(
        len(call.function.name or "") + len(call.function.arguments or "") for call in calls if call.function
    )
