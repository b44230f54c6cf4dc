"""What happened, raw: every request and every chunk with its time, so that each number can be computed again.

Knows the file, not what is computed from it. Times are whole microseconds from the run's start (a monotonic clock).
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from enum import IntFlag
from pathlib import Path
from typing import Any

import msgspec

from octavo.errors import BenchError
from octavo.workload.request import Request

__all__ = [
    "FORMAT",
    "SIMULATED",
    "Chunk",
    "ClientSample",
    "Exchange",
    "Kind",
    "Record",
    "Run",
    "ServerSample",
    "damage",
]

FORMAT = "octavo-bench-1"
SIMULATED = "simulated"
"""In place of the URL of a server."""


class Kind(IntFlag):
    """What an event of the stream had in it; several at once, or nothing at all (0: an event without a choice)."""

    ROLE = 1
    """The message's role, as the first event of a chat has it."""
    ANSWER = 2
    """Text of the answer, one character or more."""
    REASONING = 4
    """Text of the reasoning before it."""
    TOOL = 8
    """A piece of a tool call."""
    SENTENCE = 16
    """With this event's text the first sentence of the answer was whole."""
    FINISH = 32
    """A finish reason."""
    USAGE = 64
    """The count of tokens."""
    ERROR = 128
    """An error after the first byte."""
    DONE = 256
    """`[DONE]`."""
    EMPTY = 512
    """A choice with none of these in it: a token whose text comes with a later one, or an empty piece. Some tools
    count it as a token."""


class Chunk(msgspec.Struct, array_like=True, gc=False):
    """One event of a stream. Of these a run has millions: the collector of garbage need not look at them."""

    at_us: int
    """When its last byte was read from the socket."""
    tokens: int
    """How many tokens it brought. Over a whole exchange these make `output_tokens`."""
    characters: int
    """Of answer, reasoning and calls together."""
    kind: int
    """Of `Kind`."""


class Exchange(msgspec.Struct, kw_only=True, gc=False):
    """One request and what came of it."""

    index: int
    """The request's, in the workload."""
    session: int
    turn: int = 0
    tenant: str | None = None
    priority: int = 0
    intended_us: int
    """When it should have been sent: its arrival, or its delay after the end of the answer that it waited for."""
    client: int | None = None
    """Of a closed loop: which of its clients, from 0."""
    started_us: int | None = None
    """When the measuring process turned to it. What lies between this and `intended_us` is that process's lateness;
    what lies between this and `sent_us` is a connection being opened, and writing."""
    sent_us: int | None = None
    """When its last byte was handed to the system. None where it never came to that."""
    connected_us: int | None = None
    """When a connection for it was open; None where an open one was used again."""
    headers_us: int | None = None
    """When the last byte of the answer's headers was read."""
    end_us: int
    """When the answer was whole, or had failed, or was given up."""
    status: int | None = None
    wanted_input: int | None = None
    """Tokens that the workload asks for; None for a real text."""
    wanted_output: int
    input_tokens: int | None = None
    """As the server counts them, like the next three."""
    cached_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    counted: str = "none"
    """Where the chunks' tokens are from: `usage` (a count in each event), `ids`, `logprobs`, `chunks` (one for each
    event with text, and the whole is as the server counts), `spread` (the server's whole count, laid over the events
    by their characters), `events` (one for each event with text; the server counts nothing, and `output_tokens` is
    None) or `none` (no text)."""
    finish_reason: str | None = None
    error: str | None = None
    """None for a good answer, else its kind: connect, timeout, status, stream, cut, client, skipped (an answer
    before it failed)."""
    message: str | None = None
    """What the server or the system said of the error, cut."""
    request_id: str | None = None
    chunks: Sequence[Chunk] = []
    """In the order in which they came."""

    @classmethod
    def of(cls, request: Request, *, intended_us: int, end_us: int, **happened: Any) -> Exchange:
        """Of a request of a workload. `happened`: the other fields, as far as they are known."""
        return cls(
            index=request.index,
            session=request.session,
            turn=request.turn,
            tenant=request.tenant,
            priority=request.priority,
            wanted_input=request.input_tokens,
            wanted_output=request.output_tokens,
            intended_us=intended_us,
            end_us=end_us,
            **happened,
        )


class ClientSample(msgspec.Struct, array_like=True):
    """How the measuring process itself did."""

    at_us: int
    cpu: float
    """Its processor time over the time since the sample before: 1.0 is a whole core."""
    lag_us: int
    """How late the event loop woke for this sample."""
    running: int
    """Requests that were sent and had not ended."""


class ServerSample(msgspec.Struct, array_like=True):
    """What the server's metrics said. Names are ours: see octavo.bench.projects."""

    at_us: int
    values: dict[str, float]


class Run(msgspec.Struct, kw_only=True):
    """One run of a workload."""

    seed: int
    rate: float | None = None
    """Requests a second that were asked for; None in a closed loop."""
    clients: int | None = None
    """Of a closed loop."""
    began: str
    """Date and time (UTC, ISO 8601)."""
    end_us: int
    """When the last request had ended."""
    stopped: str | None = None
    """Why it ended before its workload did."""
    exchanges: list[Exchange]
    sentences: bool = True
    """Whether the answers' text has any: where it was simulated, nobody wrote one."""
    client: list[ClientSample] = []
    server: list[ServerSample] = []
    memory: dict[str, float] = {}
    """What the KV memory was good for, over the whole run: by the names of octavo.bench.memory. Empty where the server
    does not tell it."""

    def __repr__(self) -> str:
        """Short: there may be millions of events, and asyncio's Runner writes out what its main task returned."""
        return f"<Run of {len(self.exchanges)} requests, began {self.began}>"


class Record(msgspec.Struct, kw_only=True):
    """A file of `octavo bench`: what was asked of whom, and one run or several."""

    format: str = FORMAT
    octavo: str
    """The version that measured."""
    url: str
    model: str
    api: str
    """`chat` or `completions`."""
    server: str | None = None
    """As it names itself."""
    machine: dict[str, Any] = {}
    """Of the measuring process: processor, cores, system, Python."""
    name: str
    """The workload's: a preset or a file."""
    workload: dict[str, Any] = {}
    """The whole description."""
    options: dict[str, Any] = {}
    """Of the command line, but no key."""
    runs: list[Run] = []

    def write(self, path: Path) -> None:
        """As JSON; packed where the name ends in .gz. A reader never sees half of it, but where the path is no file (a
        pipe, a device): there it is written to what is there, and nothing is put in its place.

        Raises BenchError.
        """
        data = msgspec.json.encode(self, enc_hook=_listed)
        if path.suffix == ".gz":
            data = gzip.compress(data, compresslevel=5, mtime=0)
        try:
            place = path.resolve()  # what a link points to is what is meant
            if place.exists() and not place.is_file():
                place.write_bytes(data)
                return
            part = place.with_name(place.name + ".part")
            part.write_bytes(data)
            part.replace(place)
        except OSError as error:
            raise BenchError(f"{path}: cannot be written ({error.strerror}).") from error

    @classmethod
    def read(cls, path: Path) -> Record:
        """Raises BenchError for what is no record, or has times that cannot be, with the place of what is wrong."""
        try:
            data = path.read_bytes()
            if data[:2] == b"\x1f\x8b":
                data = gzip.decompress(data)
            record = msgspec.json.decode(data, type=cls)
        except OSError as error:
            reason = error.strerror or "its gzip is damaged"
            raise BenchError(f"{path}: cannot be read ({reason}).") from error
        except (EOFError, ValueError) as error:
            raise BenchError(f"{path}: this is no record of octavo bench ({error}).") from error
        if record.format != FORMAT:
            raise BenchError(f"{path}: its format is {record.format!r}, and this version reads {FORMAT!r}.")
        for place, run in enumerate(record.runs):
            if (wrong := damage(run)) is not None:
                where = f"run {place + 1}, " if len(record.runs) > 1 else ""
                raise BenchError(f"{path}: {where}{wrong}; the record was damaged or edited.")
        return record


def _listed(value: object) -> list[object]:
    if isinstance(value, Sequence):  # chunks that are kept in another way
        return list(value)
    raise NotImplementedError(f"a record has no {type(value).__name__}")


_LONGEST_US = 400 * 86_400 * 1_000_000
"""More than a year: a longer run is a wrong number, and a window over it would have no end."""


def damage(run: Run) -> str | None:
    """What cannot have happened in the run, or None.

    Only what is so for every server and client is looked at: a request may be sent before it was meant to be (a timer
    wakes early), and events may come after `[DONE]`, which ends the answer.
    """
    seen: set[int] = set()
    last_us = 0
    for one in run.exchanges:
        if one.index in seen:
            return f"request {one.index} is there twice"
        seen.add(one.index)
        if (wrong := _impossible(one)) is not None:
            return f"request {one.index} {wrong}"
        last_us = max(last_us, one.end_us)
    if run.end_us != last_us:
        return f"its end is at {run.end_us / 1e6:g} s and that of its last request at {last_us / 1e6:g} s"
    for at_us in (*(one.at_us for one in run.client), *(one.at_us for one in run.server)):
        if not 0 <= at_us <= _LONGEST_US:
            return f"a sample is from {at_us / 1e6:g} s after its start"
    return None


def _impossible(one: Exchange) -> str | None:
    if one.index < 0 or one.session < 0 or one.turn < 0:
        return "has a number below 0 as its own, its session's or its turn's"
    if one.intended_us < 0:
        return "was meant to be sent before the run began"
    if not 0 <= one.end_us <= _LONGEST_US or one.intended_us > _LONGEST_US:
        return f"is from {one.intended_us / 1e6:g} s to {one.end_us / 1e6:g} s after the run's start"
    sent_us = one.sent_us
    if sent_us is None:
        return "has events and was never sent" if one.chunks else None
    if sent_us < 0 or one.end_us < sent_us:
        return "ends before it was sent" if sent_us >= 0 else "was sent before the run began"
    if one.started_us is not None and not 0 <= one.started_us <= sent_us:
        return "was sent before its turn had come"
    if one.headers_us is not None and not sent_us <= one.headers_us:
        return "has an answer from before it was sent"
    at_us, done = sent_us, False
    for chunk in one.chunks:
        if chunk.at_us < at_us:
            return "has events out of order" if at_us != sent_us else "has an event from before it was sent"
        at_us = chunk.at_us
        if at_us > one.end_us and not done:
            return "has an event from after its end"
        if chunk.tokens < 0 or chunk.characters < 0:
            return "has an event with fewer than 0 tokens or characters"
        done = done or bool(chunk.kind & _DONE)
    return None


_DONE = int(Kind.DONE)
