"""An answer on its way to a client, whatever API it is told in. Knows its parts, not their JSON.

Each API has its `Reply` (openai_reply and others); `server/answer.py` turns the engine's outputs into calls of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

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


class Call(NamedTuple):
    """A tool that the model wants called."""

    name: str
    arguments: str
    """A JSON object, as the model wrote it; cut off where the answer was."""


class _Part(NamedTuple):
    """Text, reasoning or a call, in the pieces that it came in: joining them at the end is linear in their number."""

    kind: Literal["text", "reasoning", "call"]
    call: int
    name: str | None
    pieces: list[str]


class Choice(msgspec.Struct):
    """One choice: while it grows, and when it has finished."""

    index: int
    tokens: list[int] = msgspec.field(default_factory=list)
    """All of its token ids, the one that ended it too."""
    finish_reason: Literal["stop", "length", "tool_calls"] | None = None
    stop_reason: int | str | None = None
    cut_off: bool = False
    """Its last call is not whole: the answer ended within it, by its length or by a stop string."""
    logprobs: dict[str, Any] | None = None
    """In the form of `Reply.logprobs`; of a whole answer only, as `prompt_logprobs`."""
    prompt_tokens: Sequence[int] = ()
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    """Where they are wanted."""
    _parts: list[_Part] = msgspec.field(default_factory=list)

    def add(self, piece: Piece) -> None:
        """It has one piece more."""
        parts = self._parts
        if not parts or (parts[-1].kind, parts[-1].call) != (piece.kind, piece.call):
            parts.append(_Part(piece.kind, piece.call, piece.name, []))
        parts[-1].pieces.append(piece.text)

    @property
    def text(self) -> str:
        """What is neither reasoning nor a call."""
        return self._joined("text")

    @property
    def reasoning(self) -> str:
        return self._joined("reasoning")

    @property
    def calls(self) -> list[Call]:
        """In order."""
        return [Call(part.name or "", "".join(part.pieces)) for part in self._parts if part.kind == "call"]

    def has(self, kind: Literal["text", "reasoning", "call"]) -> bool:
        """There is a part of this kind."""
        return any(part.kind == kind for part in self._parts)

    def parts(self) -> list[Piece]:
        """Its parts in the order in which they were said, each in one piece."""
        return [Piece("".join(part.pieces), part.kind, part.call, part.name) for part in self._parts]

    def _joined(self, kind: Literal["text", "reasoning"]) -> str:
        return "".join(["".join(part.pieces) for part in self._parts if part.kind == kind])


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

    tells_tokens: bool
    """Each output makes an event, also where none of its text can be shown: a `delta` with an empty piece."""

    def begin(self, choice: Choice, usage: Usage) -> bytes:
        """A choice begins: its first tokens are there. `usage`: so far."""

    def delta(self, choice: Choice, piece: Piece, logprobs: dict[str, Any] | None) -> bytes:
        """A piece of it, as it is in `choice` already; an empty one where only log-probabilities or tokens are left to
        be told. This runs per token."""

    def finish(self, choice: Choice) -> bytes:
        """It has ended; `choice` is all of it, but for log-probabilities."""

    def closing(self, usage: Usage) -> bytes:
        """The end of the stream."""

    def failure(self, error: Exception) -> bytes:
        """Its end where something went wrong, when no status can tell it any more."""

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """The answer in one piece."""
