"""Runs against a scripted server, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from octavo.bench.client import run
from octavo.bench.record import Exchange, Kind, Run, damage
from octavo.bench.target import discover
from octavo.workload.request import Part, Request
from tests.bench.scripted import (
    Asked,
    Script,
    ScriptedServer,
    clock_ns,
    in_virtual_time,
    scripted,
)

__all__ = ["bench", "request", "text_times"]


def request(index: int, at_s: float, **more: Any) -> Request:
    fields: dict[str, Any] = {"session": index, "output_tokens": 4, "parts": (Part(f"p{index}", 5),)} | more
    return Request(index=index, at_s=at_s, **fields)


def bench(
    script: Script,
    requests: Iterable[Request],
    *,
    stalls: Iterable[tuple[float, float]] = (),
    probe: Script | None = None,
    **options: Any,
) -> tuple[Run, ScriptedServer, list[Asked]]:
    """A run; the server; what it was asked in it. `probe` answers before the run, if the script cannot."""

    async def main() -> tuple[Run, ScriptedServer, list[Asked]]:
        async with scripted(probe or script) as server:
            target = await discover(server.url, **options.pop("discover", {}))
            now = asyncio.get_running_loop().time()
            server.script = script
            server.stalls = [(now + begin, now + end) for begin, end in stalls]
            before = len(server.asked)
            found = await run(target, requests, clock_ns=clock_ns, **options)
            assert damage(found) is None  # whatever the server did, a record of it can be read again
            return found, server, server.asked[before:]

    return in_virtual_time(main)


def text_times(exchange: Exchange) -> list[int]:
    return [one.at_us for one in exchange.chunks if one.kind & Kind.ANSWER]
