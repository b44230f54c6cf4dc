"""Runs for the tests of compat: each request is written as its events, "4.0 role" or "9.5 answer 3" (milliseconds
from the run's start, what came, tokens), so that a reader can count after.
"""

from __future__ import annotations

from octavo.bench.record import Chunk, Exchange, Kind, Run

__all__ = ["exchange", "run_of", "varied"]

_KINDS = {
    "role": Kind.ROLE,
    "answer": Kind.ANSWER,
    "thought": Kind.REASONING,
    "tool": Kind.TOOL,
    "last": Kind.ANSWER | Kind.FINISH,
    "finish": Kind.FINISH,
    "empty": Kind.EMPTY,
    "usage": Kind.USAGE,
    "error": Kind.ERROR,
    "done": Kind.DONE,
}


def exchange(
    events: str,
    *,
    start_ms: float = 0.0,
    connected_ms: float | None = None,
    end_ms: float | None = None,
    tokens: int | None = None,
    prompt: int | None = 10,
    status: int | None = 200,
    error: str | None = None,
) -> Exchange:
    """A request of which the client began at `start_ms`, and what came of it. With a "usage" among the events the
    server counted: `tokens`, else as many as the events brought."""
    chunks = []
    for line in filter(None, (line.strip() for line in events.split(","))):
        at_ms, what, *count = line.split()
        kind = _KINDS[what]
        number = int(count[0]) if count else int(bool(kind & (Kind.ANSWER | Kind.REASONING | Kind.TOOL)))
        chunks.append(Chunk(round(float(at_ms) * 1000), number, 4 * number, int(kind)))
    last_ms = chunks[-1].at_us / 1000 if chunks else start_ms
    brought = sum(chunk.tokens for chunk in chunks) if tokens is None else tokens
    told = any(chunk.kind & Kind.USAGE for chunk in chunks)
    start_us = round(start_ms * 1000)
    return Exchange(
        index=0,
        session=0,
        intended_us=start_us,
        started_us=start_us,
        connected_us=None if connected_ms is None else round(connected_ms * 1000),
        sent_us=(start_us if connected_ms is None else round(connected_ms * 1000)) + 50,
        end_us=round(1000 * (last_ms if end_ms is None else end_ms)),
        status=status,
        wanted_input=prompt,
        wanted_output=brought,
        input_tokens=prompt if told else None,
        output_tokens=brought if told else None,
        counted="chunks" if chunks else "none",
        error=error,
        chunks=chunks,
    )


def run_of(*exchanges: Exchange) -> Run:
    for index, one in enumerate(exchanges):
        one.index = one.session = index
    end_us = max((one.end_us for one in exchanges), default=0)
    return Run(seed=0, clients=1, began="2026-01-01T00:00:00Z", end_us=end_us, exchanges=list(exchanges))


def varied() -> Run:
    """Every kind of event and of failure, over more than one second."""
    return run_of(
        exchange(
            "4 role, 30 answer, 38 answer, 47 answer, 55.5 last, 56 usage, 57 done",
            connected_ms=2,
            end_ms=57.5,
        ),
        exchange(
            "20 role, 61 answer 2, 75 empty, 90 answer 3, 140 finish, 141 usage, 141 done",
            start_ms=10,
            prompt=33,
        ),
        exchange(
            "120 role, 150 thought 4, 200 thought, 320 answer 2, 333 last, 334 usage, 334 done", start_ms=100
        ),
        exchange("", start_ms=130, end_ms=150, status=503, error="status", prompt=7),
        exchange(
            "190 role, 260 answer, 300 answer, 301 error, 301 done", start_ms=180, error="stream", prompt=12
        ),
        exchange("410 role, 440 answer, 470 answer", start_ms=400, connected_ms=405, end_ms=500, error="cut"),
        exchange("612 role, 700.25 last, 700.5 usage, 700.5 done", start_ms=600, prompt=5),
        exchange("815 role, 860 tool, 871 tool, 884 tool 4, 890 finish, 891 usage, 891 done", start_ms=800),
        exchange(
            "1005 role, 1101 answer, 1101 answer, 1101 answer 5, 1300 last, 1300 done",
            start_ms=1000,
            prompt=21,
        ),
        exchange("1408 role, 1450 finish, 1451 usage, 1451 done", start_ms=1400),
        exchange("", start_ms=1400, end_ms=1400, status=None, error="skipped"),
    )
