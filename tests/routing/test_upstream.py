"""A tier's answers as they come: held back from a slow reader, asked again where a connection was old."""

from __future__ import annotations

import asyncio
from pathlib import Path

from octavo.routing.upstream import Upstream
from tests.bench.scripted import Asked, Cut, Reply, ScriptedServer, Step, in_virtual_time, scripted
from tests.routing.gateways import stream, tiers_of, whole


def test_what_is_held_for_a_slow_reader_is_bounded(tmp_path: Path) -> None:
    async def main() -> None:
        async with scripted(stream(*[Step(0.0, b"x" * 60_000)] * 200)) as server:
            upstream = Upstream(tiers_of(tmp_path, {"small": server.url})["small"])
            incoming, _ = await upstream.ask("/chat/completions", b"{}", {})
            await asyncio.sleep(5)
            assert incoming.held_bytes < 1 << 20
            size = 0
            while piece := await incoming.read():
                assert incoming.held_bytes == 0
                size += len(piece)
            assert size >= 200 * 60_000
            assert incoming.whole
            await upstream.close()

    in_virtual_time(main)


def test_a_connection_that_was_old_costs_no_request(tmp_path: Path) -> None:
    good = whole()

    def script(asked: Asked) -> Reply:
        return Reply((Step(0.0, Cut()),), raw=True) if asked.index == 1 else good(asked)

    async def main() -> ScriptedServer:
        async with scripted(script) as server:
            upstream = Upstream(tiers_of(tmp_path, {"small": server.url})["small"])
            for _ in range(2):
                incoming, connection = await upstream.ask("/chat/completions", b"{}", {})
                while await incoming.read():
                    pass
                upstream.give_back(connection)
            await upstream.close()
            return server

    server = in_virtual_time(main)
    assert (len(server.asked), server.connections) == (3, 2)
