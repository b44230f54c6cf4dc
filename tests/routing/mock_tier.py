"""`python -m tests.routing.mock_tier JSON`: a tier in a process of its own, with latency and errors as told.

It prints its URL, and serves until it is killed. Its fields are those of `tests.bench.scripted.Answers`.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import msgspec

from tests.bench.scripted import Answers, ScriptedServer

__all__ = ["MockTier"]


class MockTier:
    """One, from outside."""

    def __init__(self, **fields: Any) -> None:
        command = [sys.executable, "-m", "tests.routing.mock_tier", msgspec.json.encode(fields).decode()]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url.startswith("http"), "the tier did not start"

    def kill(self) -> None:
        """At once; calling it twice is harmless."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


async def _serve(fields: dict[str, Any]) -> None:
    server = ScriptedServer(Answers(**fields))
    await server.start()
    print(server.url, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(msgspec.json.decode(sys.argv[1])))
