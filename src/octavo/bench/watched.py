"""What a running server told of its work for a while (GET /watch). Knows HTTP and lines, not what they mean."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from octavo.bench.address import Address
from octavo.bench.connection import Failure
from octavo.bench.pool import Pool
from octavo.errors import BenchError
from octavo.protocol import watch

__all__ = ["Watched", "observe"]

_FIRST_S = 10.0
"""Within which the first line is there, or nobody answers."""
_TICK_S = 0.2


@dataclass
class Watched:
    """Everything that was told. Times are seconds from the watch's begin."""

    url: str
    length_s: float = 0.0
    server: watch.Server | None = None
    asked: dict[int, watch.Asked] = field(default_factory=dict)
    answered: dict[int, watch.Answered] = field(default_factory=dict)
    steps: list[watch.Worked] = field(default_factory=list)
    gauges: list[watch.Gauges] = field(default_factory=list)
    lost: int = 0
    """Lines that the server left out."""
    cut: str | None = None
    """Why it ended before its time; None where it did not, or was ended here."""

    def take(self, line: watch.Line) -> None:
        match line:
            case watch.Server():
                self.server = line
            case watch.Asked():
                self.asked[line.id] = line
            case watch.Answered():
                self.answered[line.id] = line
            case watch.Steps():
                self.steps += line.steps
            case watch.Gauges():
                self.gauges.append(line)
            case watch.Lost():
                self.lost += line.lines


class _Reader:
    """Listens to one answer."""

    def __init__(self, into: Watched) -> None:
        self.status = 0
        self.words = b""
        """Of an answer that is no watch."""
        self.ended = asyncio.Event()
        self.failure: Failure | None = None
        self.damaged: str | None = None
        self._into = into
        self._rest = b""
        self._decoder = msgspec.json.Decoder(watch.Line)

    def headers(self, status: int, headers: dict[str, str], at_ns: int) -> None:
        self.status = status

    def body(self, data: bytes, at_ns: int) -> None:
        if self.status != 200:
            self.words = (self.words + data)[:4096]
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        try:
            for line in lines:
                self._into.take(self._decoder.decode(line))
        except msgspec.MsgspecError as error:
            self.damaged = str(error)
            self.ended.set()

    def end(self, failure: Failure | None, at_ns: int) -> None:
        self.failure = failure
        self.ended.set()


async def observe(
    url: str,
    for_s: float,
    *,
    key: str | None = None,
    insecure: bool = False,
    stop: asyncio.Event | None = None,
    begun: Callable[[Watched], None] | None = None,
    told: Callable[[float, int], None] = lambda seconds, requests: None,
) -> Watched:
    """Watch the server for so long, or until `stop` is set. `begun`: called when the server has said how it is set;
    `told`: called with seconds and answers so far. `insecure`: any certificate will do.

    Raises BenchError for a server that cannot be reached, that wants another key, or that is none of ours.
    """
    address = Address.parse(url)
    found, stop = Watched(address.url), stop or asyncio.Event()
    pool = Pool(address, max_connections=1, insecure=insecure)
    reader = _Reader(found)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_FIRST_S):
            connection, _ = await pool.connect()
        connection.ask(_request(address, key, math.ceil(for_s) + 1), reader)
        asked_s = begun_s = loop.time()
        while not (reader.ended.is_set() or stop.is_set()):
            if found.server is None:
                begun_s = loop.time()
                if begun_s - asked_s > _FIRST_S:
                    raise BenchError(
                        f"{address.url} does not answer within {_FIRST_S:g} s; is it overloaded?"
                    )
            elif loop.time() - begun_s >= for_s:
                break
            elif begun is not None:
                begun(found)
                begun = None
            told(loop.time() - begun_s, len(found.answered))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(reader.ended.wait(), _TICK_S)
        found.length_s = loop.time() - begun_s
        _check(reader, found, key)
    except TimeoutError:
        raise BenchError(f"{address.url} cannot be reached within {_FIRST_S:g} s; is it running?") from None
    except Failure as failure:
        raise BenchError(f"{address.url} cannot be reached: {failure}; is it running?") from None
    finally:
        await pool.close()
    return found


def _check(reader: _Reader, found: Watched, key: str | None) -> None:
    """Raise BenchError where there is nothing to work with."""
    url = found.url
    if reader.status in (401, 403):
        has = "the key that was given is not accepted" if key else "it wants an API key, and none was given"
        raise BenchError(f"{url} answers {reader.status}: {has}; --key-env names the variable that holds it.")
    if reader.status == 503:
        raise BenchError(f"{url} answers 503: its model is still being loaded, or it shuts down; try again.")
    if reader.damaged is not None and found.server is None:
        raise BenchError(f"{url}{watch.PATH} tells something else than Octavo does ({reader.damaged}).")
    if reader.status not in (0, 200):
        raise BenchError(
            f"{url}{watch.PATH} answers {reader.status}, so this is no Octavo server, or one of an older version; only "
            "Octavo tells what it does step by step."
        )
    if found.server is None and reader.failure is not None:
        raise BenchError(f"{url} gave no answer: {reader.failure}.")
    if found.server is None and reader.ended.is_set():
        raise BenchError(f"{url}{watch.PATH} ended without a word, so this is no Octavo server.")
    if reader.damaged is not None:
        found.cut = f"a line could not be read ({reader.damaged})"
    elif reader.failure is not None:
        found.cut = str(reader.failure)
    elif reader.ended.is_set():
        found.cut = "the server ended it"


def _request(address: Address, key: str | None, seconds: int) -> bytes:
    lines = [
        f"GET {address.path}{watch.PATH}?seconds={min(seconds, watch.MOST_SECONDS)} HTTP/1.1",
        f"host: {address.authority}",
        "accept: application/x-ndjson",
        "user-agent: octavo-plan",
    ]
    if key:
        lines.append(f"authorization: Bearer {key}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
