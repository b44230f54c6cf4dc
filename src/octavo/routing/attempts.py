"""One attempt at a tier: ask, wait until the answer has begun, and say what a failure means. Knows one tier at a time.

An answer in one piece has begun when it is whole, a stream when an event of it has come: until then nothing has gone
to the client, and another tier may be asked instead.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from octavo.bench.connection import Connection, Failure
from octavo.errors import TierFailed
from octavo.routing.asked import EMBEDDINGS, Asked
from octavo.routing.bill import Usage, usage_of
from octavo.routing.course import Outcome
from octavo.routing.events import Events
from octavo.routing.places import Place
from octavo.routing.upstream import Incoming

__all__ = ["Begun", "NotBegun", "ask"]

_STREAM = "text/event-stream"
_BYTES_A_TOKEN = 4


class NotBegun(Exception):
    """The attempt failed, and nothing has gone to the client."""

    def __init__(self, outcome: Outcome, message: str, *, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.wait_s = wait_s
        """The tier asks to be left alone for so long."""
        self.told: tuple[int, Mapping[str, str], bytes] | None = None
        """What it answered: status, headers, body."""


@dataclass(slots=True)
class Begun:
    """An answer that has begun."""

    status: int
    content_type: str
    data: bytes
    """All of it, or of a stream what has come."""
    incoming: Incoming
    connection: Connection
    events: Events | None
    """None: the answer is whole."""
    usage: Usage | None = None
    """Of a whole one."""


async def ask(place: Place, asked: Asked, limit_s: float) -> Begun:
    """At most for `limit_s`. Raises NotBegun."""
    tier = place.tier
    own_s = tier.first_byte_s if asked.stream else tier.answer_s
    more = {"content-type": "application/json"}
    if (name := asked.headers.get("x-request-id")) is not None:
        more["x-request-id"] = name
    body = asked.for_tier(tier.model, stream_usage=tier.stream_usage)
    connection: Connection | None = None
    try:
        async with asyncio.timeout(max(min(own_s, limit_s), 0.0)):
            incoming, connection = await place.upstream.ask(asked.path, body, more)
            begun = await _begun(asked, incoming, connection)
        if begun.events is None:
            place.upstream.give_back(connection)
        return begun
    except BaseException as error:
        if connection is not None:
            connection.abort()
        match error:
            case TimeoutError():
                told = f"no answer within {min(own_s, limit_s):.3g} s"
                raise NotBegun("timeout", told) from None
            case Failure():
                outcome: Outcome = "connect" if error.kind == "connect" else "cut"
                raise NotBegun(outcome, str(error)) from None
            case TierFailed():
                raise NotBegun("cut", str(error)) from None
        raise


async def _begun(asked: Asked, incoming: Incoming, connection: Connection) -> Begun:
    """Raises NotBegun, Failure, TierFailed."""
    kind = incoming.fields.get("content-type", "application/json")
    good = 200 <= incoming.status < 300
    if good and asked.stream and kind.startswith(_STREAM):
        events = Events(shows_usage=asked.wants_usage)
        data = b""
        while not events.begun:
            piece = await incoming.read()
            data += events.feed(piece) if piece else events.close()
            if events.failure is not None and not events.begun:
                raise events.failure
            if events.done or not piece:
                break
        if not events.begun:
            raise TierFailed("its stream has nothing in it")
        return Begun(incoming.status, kind, data, incoming, connection, events)
    parts = []
    while piece := await incoming.read():
        parts.append(piece)
    body = b"".join(parts)
    if good or (failure := _failure(incoming, body)) is None:
        begun = Begun(incoming.status, kind, body, incoming, connection, None)
        if good:
            begun.usage = _usage(asked, body)
        return begun
    failure.told = incoming.status, incoming.fields, body
    raise failure


def _usage(asked: Asked, body: bytes) -> Usage:
    """Of a whole answer; estimated where the tier says none. Raises TierFailed for what is no JSON."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise TierFailed("its answer is no JSON") from None
    found = usage_of(answer)
    if found is not None:
        return found
    output = 0 if asked.path == EMBEDDINGS else len(body) // _BYTES_A_TOKEN
    return Usage(asked.prompt_tokens, 0, output, estimated=True)


def _failure(incoming: Incoming, body: bytes) -> NotBegun | None:
    """What an error's status means; None where the client has to mend its request."""
    status = incoming.status
    code, message = _error(body)
    told = f"it answers {status}{f' ({message})' if message else ''}"
    match status:
        case 401 | 403:
            return NotBegun("key", told)
        case 404:
            return NotBegun("model", told)
        case 408 | 429 | 503 | 529:
            wait_s = _seconds(incoming.fields.get("retry-after"))
            return NotBegun("overloaded", told, wait_s=wait_s)
        case 400 | 413 if code == "context_length_exceeded":
            return NotBegun("context", told)
        case _ if status >= 500 or status < 400:
            return NotBegun("server", told)
    return None


def _error(body: bytes) -> tuple[str, str]:
    """Code and message of OpenAI's error object."""
    try:
        error = orjson.loads(body)["error"]
        return str(error.get("code") or ""), str(error.get("message") or "")[:200].rstrip(".")
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return "", ""


def _seconds(text: str | None) -> float | None:
    """Of a Retry-After; a date is not read."""
    try:
        found = float(text) if text is not None else None
    except ValueError:
        return None
    return found if found is not None and math.isfinite(found) and found >= 0 else None
