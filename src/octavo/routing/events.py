"""A tier's stream of events on its way to the client: passed on as it is, watched for its usage and its end.

Knows the framing and OpenAI's chunks, no network. Only whole events leave: what is cut in the middle waits for the
rest, so that an error can follow at any time.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from octavo.errors import TierFailed
from octavo.routing.bill import Usage, usage_of

__all__ = ["Events"]

MAX_EVENT_BYTES = 16 << 20
_END = re.compile(rb"\r?\n\r?\n")
_DONE = re.compile(rb"data: ?\[DONE\]")
_SAID_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_ERROR = re.compile(rb'\{\s*"error"\s*:\s*[{"]')


class Events:
    """One stream."""

    def __init__(self, *, shows_usage: bool) -> None:
        """`shows_usage`: the client wants the event that counts tokens; else it is kept from it."""
        self.begun = False
        """An event with something in it has come."""
        self.done = False
        """The stream said that it is at its end."""
        self.usage: Usage | None = None
        self.failure: TierFailed | None = None
        """It broke: there was an error among the events, or it ended too soon."""
        self.chunks = 0
        """Events with something of the answer: about as many as its tokens."""
        self._shows_usage = shows_usage
        self._rest = b""
        self._last = b""
        """The last event's data."""

    def feed(self, data: bytes) -> bytes:
        """What may be sent on, as far as it is good: then look at `failure`. The end's [DONE] is not in it."""
        if self._rest:
            data = self._rest + data
        ends = [match.end() for match in _END.finditer(data)]
        if not ends:
            if len(data) > MAX_EVENT_BYTES:
                self.failure = TierFailed(f"an event of its stream has more than {MAX_EVENT_BYTES >> 20} MiB")
            self._rest = data
            return b""
        self._rest = data[ends[-1] :]
        kept, start = [], 0
        for end in ends:
            event = data[start:end]
            start = end
            if not self.done and not self.failure and self._passes(event):
                kept.append(event)
        return b"".join(kept)

    def close(self) -> bytes:
        """The bytes are at their end: what may still be sent, and then look at `failure`."""
        rest, self._rest = self._rest, b""
        found = rest + b"\n\n" if rest.strip() and self._passes(rest) else b""
        if not self.done and not self.failure and not self._ended():
            self.failure = TierFailed("its stream ended in the middle of the answer")
        self.done = self.failure is None
        return found

    def _passes(self, event: bytes) -> bool:
        """Looks at one event, and says whether the client gets it."""
        place = 0 if event.startswith(b"data:") else event.find(b"\ndata:")
        if place < 0:  # a comment, which keeps a connection alive; or nothing
            return self.begun and bool(event.strip())
        if _DONE.match(event, place if place == 0 else place + 1):
            self.done = True
            return False
        text = event[event.index(b"data:", place) + 5 :].strip()
        if _ERROR.match(text):
            self.failure = TierFailed(_message(text))
            return False
        self.begun = True
        self._last = text
        if b'"usage"' in text and _SAID_USAGE.search(text) and (chunk := _read(text)) is not None:
            found = usage_of(chunk)
            if found is not None:
                self.usage = found
                if not chunk.get("choices"):
                    return self._shows_usage
        self.chunks += 1
        return True

    def _ended(self) -> bool:
        """Without a [DONE], a last event that gives a reason, or the count of tokens, is an end."""
        chunk = _read(self._last)
        if chunk is None:
            return False
        choices = chunk.get("choices")
        if not choices:
            return usage_of(chunk) is not None
        return any(isinstance(one, dict) and one.get("finish_reason") for one in choices)


def _read(text: bytes) -> dict[str, Any] | None:
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _message(text: bytes) -> str:
    error = (_read(text) or {}).get("error")
    said = error.get("message") if isinstance(error, dict) else error
    return f"its stream has an error: {str(said)[:300]}"
