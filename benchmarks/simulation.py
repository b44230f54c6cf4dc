"""How fast a simulation is, and what it holds in memory: `python -m benchmarks.simulation --azure FILE`, `--million`,
`--growth`, or several of them.

`--azure`: a trace, such as an hour of Azure's conversations, on one A100 with Llama-3-8B. `--million`: chat requests
over 100 of these behind a router. `--growth`: the same load for ten times as long: time and memory for each request
must not grow, nor from tenth to tenth of the longer run once its sessions have begun. Every run is a process of its own
on one core, measures included; its progress is on standard error.

The limit is how fast the machine calls Python's functions, which is measured beside each run: where others use the same
cores, it takes longer to call them, and so does the run.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from typing import NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table

from octavo.bench.measures import measure
from octavo.config import RouterName
from octavo.simulation.cluster import Cluster
from octavo.simulation.deployment import Deployment
from octavo.simulation.replica import Replica
from octavo.simulation.routers import ROUTERS
from octavo.simulation.run import simulate
from octavo.timing.clock import ManualClock
from octavo.workload.generate import requests_of
from octavo.workload.spec import Trace, Workload, load_workload

__all__: list[str] = []

_ROUTER: RouterName = "least-loaded"
_TOLD_EVERY_S = 5.0
_CALLS = 200_000
_ENDLESS = 1 << 62


class Outcome(NamedTuple):
    """One run."""

    name: str
    requests: int
    tokens: int
    """Of answers."""
    steps: int
    virtual_s: float
    wall_s: float
    cpu_s: float
    measures_s: float
    """Processor time of all numbers of the report, beside `cpu_s`."""
    before_mib: float
    """Resident at most before the run, and after all."""
    peak_mib: float
    tenths_ms: list[float]
    """Processor time of each answer, without measures, from tenth to tenth of the answers."""
    call_ns: float
    """How long a call of a small Python function takes: of the median stretch, before and behind the run."""


def run(name: str, workload: Workload, replicas: int) -> Outcome:
    """In this process."""
    deployment = Deployment(model="llama-3-8b", hardware="a100-80")
    served = [Replica(deployment.settings, deployment.pace, ManualClock()) for _ in range(replicas)]
    cluster = Cluster(served, ROUTERS[_ROUTER]())
    calls_ns = _calls_ns()
    before_mib, wall_s, cpu_s = _peak_mib(), time.perf_counter(), time.process_time()
    told_s = wall_s
    spent = [(0, cpu_s)]

    def tell(done: int, now_s: float) -> None:
        nonlocal told_s
        if done >= len(spent) * (workload.requests or _ENDLESS) // 10:
            spent.append((done, time.process_time()))
        at_s = time.perf_counter()
        if at_s - told_s > _TOLD_EVERY_S:
            told_s = at_s
            words = f"{name}: {done:,} answers, {now_s:,.0f} s simulated in {at_s - wall_s:,.0f} s"
            print(words, file=sys.stderr, flush=True)

    made = simulate(
        cluster,
        requests_of(workload),
        clients=workload.clients,
        seed=workload.seed,
        rate=workload.rate,
        compact=True,
        on_progress=tell,
    )
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    measures_s = time.process_time()
    assert measure(made).answered
    return Outcome(
        name=name,
        requests=len(made.exchanges),
        tokens=sum(one.output_tokens or 0 for one in made.exchanges),
        steps=sum(one.stats.steps for one in served),
        virtual_s=made.end_us / 1e6,
        wall_s=wall_s,
        cpu_s=cpu_s,
        measures_s=time.process_time() - measures_s,
        before_mib=before_mib,
        peak_mib=_peak_mib(),
        tenths_ms=[
            (until_s - from_s) / max(until - first, 1) * 1e3
            for (first, from_s), (until, until_s) in pairwise(spent)
        ],
        call_ns=statistics.median(calls_ns + _calls_ns()),
    )


def _calls_ns() -> list[float]:
    """Of a call, in each of some stretches."""
    found = []
    for _ in range(20):
        began_s = time.process_time()
        for number in range(_CALLS):
            _called(number)
        found.append((time.process_time() - began_s) / _CALLS * 1e9)
    return found


def _called(number: int) -> int:
    return number + 1


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def chat(requests: int, rate: float) -> Workload:
    """Of the preset."""
    return msgspec.structs.replace(load_workload("chat"), requests=requests).at_rate(rate)


def table(outcomes: list[Outcome]) -> Table:
    """One row for each."""
    columns = (
        "run", "requests", "tokens", "steps", "virtual s", "wall s", "CPU s", "measures CPU s", "requests/s",
        "ms a request", "virtual/wall", "MiB before", "MiB at most", "KiB a request", "ns a call",
    )  # fmt: skip
    made = Table(*columns, box=None, pad_edge=False)
    for one in outcomes:
        made.add_row(
            one.name,
            f"{one.requests:,}",
            f"{one.tokens:,}",
            f"{one.steps:,}",
            f"{one.virtual_s:,.0f}",
            f"{one.wall_s:,.1f}",
            f"{one.cpu_s:,.1f}",
            f"{one.measures_s:,.1f}",
            f"{one.requests / one.wall_s:,.0f}",
            f"{one.cpu_s / one.requests * 1e3:.3f}",
            f"{one.virtual_s / one.wall_s:,.1f}",
            f"{one.before_mib:,.0f}",
            f"{one.peak_mib:,.0f}",
            f"{(one.peak_mib - one.before_mib) * 1024 / one.requests:.2f}",
            f"{one.call_ns:.0f}",
        )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--azure", metavar="FILE", help="a trace with times and lengths")
    parser.add_argument("--million", action="store_true")
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--requests", type=int, default=1_000_000, help="of --million")
    parser.add_argument("--replicas", type=int, default=100, help="of --million")
    parser.add_argument(
        "--session-rate", type=float, default=2.0, help="sessions a second for each replica, of chat"
    )
    given = parser.parse_args()
    runs: list[tuple[str, Workload, int]] = []
    if given.azure:
        runs.append(("azure", Workload(trace=Trace(file=given.azure)), 1))
    if given.growth:
        rate = 10 * given.session_rate
        runs += [(f"growth, {many:,}", chat(many, rate), 10) for many in (10_000, 100_000)]
    if given.million:
        rate = given.replicas * given.session_rate
        runs.append((f"{given.requests:,} over {given.replicas}", chat(given.requests, rate), given.replicas))
    if not runs:
        parser.error("say which: --azure FILE, --million, --growth")
    outcomes = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as processes:
        for one in runs:
            outcomes.append(processes.submit(run, *one).result())
            print(f"{outcomes[-1].name}: {outcomes[-1].wall_s:,.1f} s", file=sys.stderr, flush=True)
    Console(width=240).print(table(outcomes))
    if given.growth:
        short, long = (one for one in outcomes if one.name.startswith("growth"))
        ratio = (long.cpu_s / long.requests) / (short.cpu_s / short.requests)
        print(f"{long.requests / short.requests:g} times the requests: {ratio:.2f} times the time for each")
        print(f"ms a request, by tenths: {' '.join(f'{one:.3f}' for one in long.tenths_ms)}")


if __name__ == "__main__":
    main()
