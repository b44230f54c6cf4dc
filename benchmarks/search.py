"""How often a search's interval has the truth, on queues of known capacity: `python -m benchmarks.search`.

Each search is of an M/M/1 queue in closed form with lognormal noise between runs; the bound is what the queue just
meets at a share of its capacity. The start is anywhere from a twentieth to five times that capacity.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random

from benchmarks.queues import Queue
from octavo.bench.search import search
from octavo.bench.slo import Slo
from octavo.errors import BenchError

__all__: list[str] = []


async def _row(noise: float, share: float, searches: int) -> str:
    held = done = runs = 0
    off: list[float] = []
    widths: list[float] = []
    for seed in range(searches):
        start = math.exp(random.Random(seed).uniform(-3.0, 1.5))
        queue = Queue(10.0, noise, seed=seed)
        truth = share * queue.capacity
        try:
            found = await search(
                queue.run_at,
                Slo.parse(f"ttft_p99<{queue.p99(truth)!r}s"),
                alone=queue.alone,
                start=start * queue.capacity,
            )
        except BenchError:
            continue  # noise made one request at a time too slow
        done += 1
        runs += len(queue.asked)
        assert found.best is not None and found.best.rate is not None and found.rate is not None
        held += truth in found.rate
        off.append(abs(math.log(found.best.rate / truth)))
        widths.append(found.rate.high / found.rate.low)
    off.sort()
    widths.sort()
    return (
        f"{noise:5.0%} {share:5.0%} {held / done:8.1%} {runs / done:6.1f} {math.expm1(off[done // 2]):10.1%} "
        f"{math.expm1(off[int(0.95 * done)]):10.1%} {widths[done // 2]:8.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--searches", type=int, default=200)
    given = parser.parse_args()
    print("noise bound  held truth  runs  off: median  95 %   high/low of the interval")
    for noise in (0.0, 0.05, 0.1, 0.2, 0.4):
        for share in (0.3, 0.6, 0.9):
            print(asyncio.run(_row(noise, share, given.searches)), flush=True)


if __name__ == "__main__":
    main()
