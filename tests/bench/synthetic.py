"""Records that look like real ones: a server with a few places and a queue, worked off on paper. Knows no network."""

from __future__ import annotations

import random

from octavo.bench.record import Chunk, ClientSample, Exchange, Kind, Record, Run, ServerSample

__all__ = ["synthetic_record", "synthetic_run"]


def synthetic_run(
    rate: float,
    *,
    requests: int = 150,
    seed: int = 1,
    places: int = 8,
    fail_every: int = 0,
    late_us: int = 300,
) -> Run:
    """Poisson arrivals at a server that answers `places` requests at a time, each token in about 20 ms.

    Of three events with tokens one brings two. `fail_every`: so often a request fails after its first token.
    """
    chance = random.Random(f"{rate} {seed}")
    free = [0.0] * places
    at = 0.0
    exchanges = []
    for index in range(requests):
        sent = at + chance.uniform(0, 2 * late_us) / 1e6
        place = min(range(places), key=free.__getitem__)
        first = max(sent, free[place]) + chance.uniform(0.06, 0.12)
        tokens = chance.randint(5, 60)
        failed = fail_every > 0 and index % fail_every == fail_every - 1
        chunks = [Chunk(round((first - 0.01) * 1e6), 0, 0, int(Kind.ROLE))]
        now, told = first, 0
        while told < tokens:
            count = min(2 if len(chunks) % 3 == 0 else 1, tokens - told)
            kind = Kind.ANSWER | (Kind.SENTENCE if told < 10 <= told + count else 0)
            chunks.append(Chunk(round(now * 1e6), count, 4 * count, int(kind)))
            told += count
            now += count * chance.lognormvariate(-3.95, 0.25)
            if failed:
                break
        free[place] = now
        if not failed:
            chunks.append(Chunk(round(now * 1e6), 0, 0, int(Kind.FINISH | Kind.USAGE)))
        exchanges.append(
            Exchange(
                index=index,
                session=index,
                tenant=("web", "nightly")[index % 4 == 3],
                intended_us=round(at * 1e6),
                started_us=round(sent * 1e6),
                sent_us=round(sent * 1e6),
                headers_us=round((first - 0.02) * 1e6),
                end_us=round(now * 1e6),
                status=200,
                wanted_input=200,
                wanted_output=tokens,
                input_tokens=200,
                cached_tokens=64,
                output_tokens=None if failed else tokens,
                counted="ids",
                finish_reason=None if failed else "length",
                error="cut" if failed else None,
                message="the connection was closed after <1> event" if failed else None,
                chunks=chunks,
            )
        )
        at += chance.expovariate(rate)
    end_us = max(one.end_us for one in exchanges)
    ticks = range(0, end_us, 250_000)

    def running(now: int) -> int:
        return sum(one.sent_us is not None and one.sent_us <= now < one.end_us for one in exchanges)

    return Run(
        seed=seed,
        rate=rate,
        began="2026-01-01T00:00:00Z",
        end_us=end_us,
        exchanges=exchanges,
        client=[
            ClientSample(now, 0.08 + 0.002 * running(now), chance.randint(50, 900), running(now))
            for now in ticks
        ],
        server=[
            ServerSample(
                now,
                {
                    "running": float(min(places, running(now))),
                    "waiting": float(max(0, running(now) - places)),
                    "kv_use": min(1.0, 0.02 + running(now) / 20),
                    "busy_s": now / 1e6 * 0.8,
                    "preemptions": float(now // 5_000_000),
                },
            )
            for now in ticks
        ],
    )


def synthetic_record(*runs: Run, name: str = "chat", model: str = "smollm2") -> Record:
    """Of these runs, or of one at four requests a second."""
    return Record(
        octavo="0.1.0",
        url="http://127.0.0.1:8000/v1",
        model=model,
        api="chat",
        server="octavo 0.1.0",
        machine={"processor": "a processor", "cores": 2, "system": "Linux", "python": "3.11"},
        name=name,
        workload={"requests": 150, "arrivals": {"kind": "poisson", "rate": 4.0}},
        options={"rate": 4.0, "requests": 150},
        runs=list(runs) or [synthetic_run(4.0)],
    )
