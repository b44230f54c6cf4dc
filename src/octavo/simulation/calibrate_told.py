"""Measures a server that tells of its steps (GET /watch), by designed probes and by a mixed traffic as servers have it.

Knows the bench's client and what is told, no engine. The steps say what they computed and how long they took; what lies
between a client and its engine comes from prompts alone: the time to their first chunk, less their steps.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager

from octavo.backends.base import Limits
from octavo.bench.client import Scrape, run
from octavo.bench.record import Run
from octavo.bench.target import Target
from octavo.bench.watched import Watched, observe
from octavo.errors import BenchError
from octavo.protocol import watch
from octavo.simulation.calibrate_engine import BEGINNINGS, LONGEST_TRAFFIC
from octavo.workload.request import Part, Request

__all__ = ["limits_told", "listening", "run_probe", "traffic"]

_ROOM = 64
_PROMPTS = 32
"""At least, for each number of clients: short prompts that come one by one beside a few streams are what most servers
compute most of the time, and with a prompt's few steps the fit cannot tell its tokens from those of decodes."""
_SETTLE_S = 0.6
"""Until what was told last has been read."""


@asynccontextmanager
async def listening(target: Target) -> AsyncIterator[Watched | None]:
    """What the server tells while this lasts; it is whole when it ended. None where it tells nothing."""
    stop, begun = asyncio.Event(), asyncio.Event()
    found: list[Watched] = []

    def noted(watched: Watched) -> None:
        found.append(watched)
        begun.set()

    task = asyncio.create_task(
        observe(
            target.url, watch.MOST_SECONDS, key=target.key, insecure=target.insecure, stop=stop, begun=noted
        )
    )
    waiting = asyncio.create_task(begun.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    try:
        yield found[0] if found else None
        if found:
            await asyncio.sleep(_SETTLE_S)
    finally:
        stop.set()
        try:
            await task
        except BenchError:
            if found:
                raise


def limits_told(server: watch.Server) -> Limits:
    return Limits(
        num_blocks=server.num_blocks,
        block_size=server.block_size,
        max_slots=server.max_running,
        max_step_tokens=server.max_step_tokens,
        max_model_len=server.max_model_len,
    )


async def run_probe(
    target: Target,
    requests: Iterable[Request],
    *,
    clients: int | None = None,
    scrape: Scrape | None = None,
) -> Run:
    """All of them, each answered. Raises BenchError where one fails."""
    done = await run(target, requests, clients=clients, scrape=scrape, timeout_s=300.0)
    failed = next((one for one in done.exchanges if one.error is not None), None)
    if failed is not None:
        raise BenchError(f"A probe of {target.url} failed ({failed.error}: {failed.message}).")
    return done


def traffic(limits: Limits, clients: int, turn: int) -> Iterator[Request]:
    """Prompts of all lengths, some with a beginning that others have; tokens are new in each turn."""
    chance = random.Random(clients)
    longest = min(limits.max_model_len, limits.num_blocks * limits.block_size // 2) - _ROOM
    beginnings = [tokens for tokens in BEGINNINGS if tokens < longest // 2]
    for place in range(max(2 * clients + 6, _PROMPTS)):
        parts: tuple[Part, ...] = ()
        if beginnings and chance.random() < 0.4:
            tokens = chance.choice(beginnings)
            parts = (Part(f"calibrate/{turn}/beginning/{tokens}", tokens),)
        most = max(min(longest - sum(one.tokens for one in parts), LONGEST_TRAFFIC), 1)
        own = max(round(most ** chance.uniform(0.3, 1.0)), 1)
        yield Request(
            index=place,
            at_s=0.0,
            session=place,
            parts=(*parts, Part(f"calibrate/{turn}/{clients}/{place}", own)),
            output_tokens=chance.randint(4, _ROOM - 4),
            seed=turn,
        )
