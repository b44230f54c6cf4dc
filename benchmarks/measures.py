"""How long the numbers of a long run take: `python -m benchmarks.measures [--requests 100000] [--events 200]`."""

from __future__ import annotations

import argparse
import random
import resource
import time

from octavo.bench.measures import measure
from octavo.bench.record import Chunk, Exchange, Kind, Run
from octavo.bench.slo import Slo
from octavo.bench.times import Times

__all__: list[str] = []


def _run(requests: int, events: int, tenants: int) -> Run:
    draws = random.Random(1)
    exchanges = []
    for index in range(requests):
        intended = index * 10_000
        at = intended + draws.randint(20_000, 400_000)
        chunks = []
        for _ in range(events):
            chunks.append(Chunk(at, 1, 4, int(Kind.ANSWER)))
            at += draws.randint(5_000, 60_000)
        exchanges.append(
            Exchange(
                index=index, session=index, tenant=f"tenant {index % tenants}" if tenants else None,
                intended_us=intended, sent_us=intended + 90, end_us=at, status=200, wanted_input=100,
                wanted_output=events, input_tokens=100, output_tokens=events, counted="ids", chunks=chunks,
            )
        )  # fmt: skip
    end_us = max(one.end_us for one in exchanges)
    return Run(seed=1, rate=100.0, began="2026-01-01T00:00:00Z", end_us=end_us, exchanges=exchanges)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--events", type=int, default=200, help="of each request")
    parser.add_argument("--tenants", type=int, default=0)
    given = parser.parse_args()
    run = _run(given.requests, given.events, given.tenants)

    def peak() -> str:
        return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB at most"

    print(f"{given.requests:,} requests of {given.events} events: {peak()}")
    for words, work in (
        ("times of each request", lambda: Times(run)),
        ("all numbers", lambda: measure(run)),
        ("and with an SLO", lambda: measure(run, slo=Slo.parse("ttft_p99<300ms,itl_p99<55ms"))),
    ):
        began = time.process_time()
        work()
        print(f"{words}: {time.process_time() - began:.2f} s of processor time, {peak()}", flush=True)


if __name__ == "__main__":
    main()
