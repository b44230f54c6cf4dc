"""An answer on its way to a client, whatever API it is told in. Knows its parts, not their JSON.

Each API has its `Reply` (openai_reply and others); `server/answer.py` turns the engine's outputs into calls of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol

import msgspec

from octavo.text.pieces import Piece

__all__ = ["Call", "Choice", "Reply", "Usage"]


class Usage(msgspec.Struct):
    """What one request used, in tokens. A prompt counts once however many choices it has."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    reasoning: int = 0
    """Of the completion: tokens of reasoning."""
    accepted: int = 0
    rejected: int = 0
    """Tokens that were guessed (from a prediction or otherwise) and were right, and those that were not."""
    first_output_s: float = 0.0
    """When the first token was there (time.monotonic); 0 before."""

    @property
    def total(self) -> int:
        return self.prompt + self.completion


class Call(msgspec.Struct):
    """A tool that the model wants called."""

    name: str
    arguments: str = ""
    """A JSON object, as the model wrote it; cut off where the answer was."""


class Choice(msgspec.Struct):
    """One choice: while it grows, and when it has finished."""

    index: int
    text: str = ""
    reasoning: str = ""
    calls: list[Call] = msgspec.field(default_factory=list)
    tokens: list[int] = msgspec.field(default_factory=list)
    """All of its token ids, the one that ended it too."""
    finish_reason: Literal["stop", "length", "tool_calls"] | None = None
    stop_reason: int | str | None = None
    logprobs: dict[str, Any] | None = None
    """In the form of `Reply.logprobs`; of a whole answer only, as the next two."""
    prompt_tokens: Sequence[int] = ()
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    """Where they are wanted."""
    _begun: list[tuple[str, int, int]] = msgspec.field(default_factory=list)
    """Its parts in order: kind, which call, and where it begins in `text` or `reasoning`."""

    def add(self, piece: Piece) -> None:
        """It has one piece more."""
        if not self._begun or self._begun[-1][:2] != (piece.kind, piece.call):
            begins = len(self.text if piece.kind == "text" else self.reasoning)
            self._begun.append((piece.kind, piece.call, begins))
        if piece.kind == "text":
            self.text += piece.text
        elif piece.kind == "reasoning":
            self.reasoning += piece.text
        else:
            if piece.name is not None:
                self.calls.append(Call(piece.name))
            self.calls[piece.call].arguments += piece.text

    def parts(self) -> Iterator[Piece]:
        """Its parts in the order in which they were said, each in one piece."""
        ends = {"text": len(self.text), "reasoning": len(self.reasoning)}
        parts: list[Piece] = []
        for kind, number, begins in reversed(self._begun):
            if kind == "call":
                call = self.calls[number]
                parts.append(Piece(call.arguments, "call", number, call.name))
            elif kind == "text":
                parts.append(Piece(self.text[begins : ends[kind]]))
            else:
                parts.append(Piece(self.reasoning[begins : ends[kind]], "reasoning"))
            ends[kind] = begins
        return reversed(parts)


class Reply(Protocol):
    """One answer in the words of one API. Made for one request, and may remember what it has told.

    Streamed, its methods are called in this order: for each choice `begin`, then `delta` for what comes, then `finish`
    (choices mixed); at last `closing`, or `failure`. Each gives the bytes to send, b"" for none. Otherwise `whole`.
    """

    reply_id: str
    media_type: str
    """Of a stream."""
    logprobs: Literal["chat", "completion"]
    """The form of log-probabilities that it takes (protocol/logprobs.py)."""

    def begin(self, index: int, usage: Usage) -> bytes:
        """A choice begins. `usage`: so far."""

    def delta(self, index: int, piece: Piece, logprobs: dict[str, Any] | None) -> bytes:
        """A piece of it; an empty one where only log-probabilities are left to be told. This runs per token."""

    def finish(self, choice: Choice) -> bytes:
        """It has ended; `choice` is all of it, but for log-probabilities."""

    def closing(self, usage: Usage) -> bytes:
        """The end of the stream."""

    def failure(self, error: Exception) -> bytes:
        """Its end where something went wrong, when no status can tell it any more."""

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """The answer in one piece."""
