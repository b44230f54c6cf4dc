"""A server over the tiny model, to be calibrated from outside."""

from __future__ import annotations

from tests.server.conftest import tiny_dir, tiny_engine

__all__ = ["tiny_dir", "tiny_engine"]
