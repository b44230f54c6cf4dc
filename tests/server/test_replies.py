"""What routes answer with."""

from __future__ import annotations

import tracemalloc

import orjson

from octavo.server.replies import kept_json


def test_json_that_is_kept_holds_what_it_says() -> None:
    """Stored responses held 20 kB for 3 kB, so that their limit of 32 MiB was one of 200."""
    value = {"text": ["word"] * 100}
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept = [kept_json(value) for _ in range(1000)]
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept[0] == orjson.dumps(value)
    assert after - before < 1000 * (len(kept[0]) + 100)
