"""Requests that are made to hurt: refused by name, without memory for them, and the server is as it was."""

from __future__ import annotations

import gzip
import json

import psutil
import pytest

from tests.faults.weapons import WEAPONS
from tests.server.conftest import Server

GROWTH_BYTES = 160 << 20
"""A body, what is decoded of it, and what malloc keeps of either: once, and not for each."""


@pytest.mark.slow
def test_too_much_of_anything_is_refused_on_every_api(server: Server) -> None:
    """Cases 8, 32 and 33."""
    process = psutil.Process(server.process.pid)
    answer = server.complete(prompt="Hello", max_tokens=20, seed=1)["choices"]
    before = process.memory_info().rss
    for name, weapon in WEAPONS.items():
        body = weapon.body()
        content = body if isinstance(body, bytes) else json.dumps({"model": "tiny", **body}).encode()
        response = server.client.post(
            weapon.path, content=content, headers={"content-type": "application/json"}
        )
        assert response.status_code in (400, 413), f"{name}: {response.status_code} {response.text[:300]}"
        assert len(response.content) < 2000, name
        error = response.json()["error"]
        assert (error if isinstance(error, str) else error["message"]).endswith((".", "?")), name
        assert process.memory_info().rss < before + GROWTH_BYTES, name
    assert server.client.get("/health").json() == {"status": "ready"}
    assert server.complete(prompt="Hello", max_tokens=20, seed=1)["choices"] == answer
    server.until_idle()


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, gzip"])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages", "/api/chat", "/v1/batches"])
def test_what_would_burst_is_not_unpacked(server: Server, path: str, encoding: str) -> None:
    """Case 8: a body of 30 kB that would be 30 MB."""
    bomb = gzip.compress(b" " * 30_000_000)
    response = server.client.post(path, content=bomb, headers={"content-encoding": encoding})
    assert response.status_code == 415
