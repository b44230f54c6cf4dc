"""The fixtures of the server's tests: faults are mostly its own."""

from __future__ import annotations

from tests.server.conftest import server, tiny_dir, tiny_engine

__all__ = ["server", "tiny_dir", "tiny_engine"]
