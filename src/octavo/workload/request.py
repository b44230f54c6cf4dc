"""One request of a workload: who asks, when, after what, and with which tokens. Knows no arrivals and no files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec

from octavo.workload.draws import token_ids

__all__ = ["WORDS", "Part", "Request"]

_COMMON = """
time year people way day man thing woman life child world school state family student group country problem
hand part place case week company system program question work government number night point home water room
mother area money story fact month lot right study book eye job word business issue side kind head house
service friend father power hour game line end member law car city community name president team minute idea
body information back parent face others level office door health person art war history party result change
morning reason research girl guy moment air teacher force education foot boy age policy music market sense
nation plan college interest death experience effect use class control field role
"""
WORDS = tuple(_COMMON.split())
"""Common English words: with its blank, each is one token in nearly every vocabulary."""


class Part(msgspec.Struct, frozen=True, array_like=True):
    """A stretch of a prompt. Equal keys are equal tokens from the start: this is what prompts share."""

    key: str
    tokens: int
    answer_of: int | None = None
    """The index of the request whose answer stands here; a client may put in what the server really said."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request. Its prompt is `parts` (made up), or `messages` or `text` (real), or `ids` (real)."""

    index: int
    """Its place in the workload, from 0."""
    at_s: float
    """When it arrives, in seconds from the start. Where `after` is set: the earliest, if answers took no time."""
    after: int | None = None
    """The index of the request whose answer it waits for; it is sent `delay_s` after that."""
    delay_s: float = 0.0
    tenant: str | None = None
    priority: int = 0
    """As in the API: a lower number goes first."""
    session: int
    turn: int = 0
    """Within the session, from 0."""
    parts: tuple[Part, ...] = ()
    ids: tuple[int, ...] | None = None
    text: str | None = None
    messages: tuple[dict[str, Any], ...] | None = None
    given_tokens: int | None = None
    """The input's length where a trace has it beside a real text."""
    output_tokens: int
    seed: int = 0
    """Of the workload: decides what tokens the parts are."""

    @property
    def input_tokens(self) -> int | None:
        """None for a real text whose tokens only the server counts."""
        if self.ids is not None:
            return len(self.ids)
        if self.text is not None or self.messages is not None:
            return self.given_tokens
        return sum(part.tokens for part in self.parts)

    def token_ids(self, vocabulary: int = 32_000, first: int = 256) -> list[int]:
        """The prompt's tokens, each in [first, vocabulary): below `first` special tokens are likely.

        Raises ValueError for a prompt that is a text: only a tokenizer knows its tokens.
        """
        if self.ids is not None:
            return list(self.ids)
        if self.text is not None or self.messages is not None:
            raise ValueError("The prompt is a text; a tokenizer knows its tokens.")
        return [first + one for one in self._numbers(vocabulary - first)]

    def prompt_text(self) -> str:
        """The text, or one of common words with about as many tokens; equal parts are equal words.

        Raises ValueError for messages and token ids, which are no text.
        """
        if self.text is not None:
            return self.text
        if self.ids is not None or self.messages is not None:
            raise ValueError("The prompt is no text; use its ids or messages.")
        return " ".join(WORDS[one] for one in self._numbers(len(WORDS)))

    def block_hashes(self, block_size: int, *, partial: bool) -> Iterator[bytes]:
        """One hash for each block of the prompt, over it and all before it; equal for equal tokens of equal parts.

        `partial`: the last block counts even when it is not full. Nothing for a text.
        """
        chain = b""
        if self.ids is not None:
            stop = len(self.ids) if partial else len(self.ids) // block_size * block_size
            for start in range(0, stop, block_size):
                block = self.ids[start : start + block_size]
                chain = _digest(chain, repr(block))
                yield chain
            return
        if self.text is not None or self.messages is not None:
            return
        pieces: list[str] = []
        room = block_size
        for part in self.parts:
            start = 0
            while start < part.tokens:
                took = min(room, part.tokens - start)
                pieces.append(f"{part.key}\0{start}\0{took}")
                start, room = start + took, room - took
                if room == 0:
                    chain, room = _digest(chain, "\0\0".join(pieces)), block_size
                    yield chain
                    pieces.clear()
        if pieces and partial:
            yield _digest(chain, "\0\0".join(pieces))

    def _numbers(self, below: int) -> Iterator[int]:
        for part in self.parts:
            yield from token_ids(self.seed, part.key, 0, part.tokens, below)


def _digest(chain: bytes, block: str) -> bytes:
    return hashlib.blake2b(chain + block.encode(), digest_size=16).digest()
