"""Runs of one workload against one server: one, several with other seeds, a sweep over loads, a search for the highest.

Fills a record, run after run, and shows how it goes. Knows no command line and makes no report.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from octavo.bench import client
from octavo.bench.connection import ClockNs
from octavo.bench.measures import Measures, measure
from octavo.bench.progress import Live
from octavo.bench.record import Record, Run
from octavo.bench.search import Progress as Step
from octavo.bench.search import search
from octavo.bench.shown import show, show_load
from octavo.bench.slo import Slo
from octavo.bench.sweep import sweep_auto
from octavo.bench.target import Target
from octavo.bench.trial import Trial
from octavo.bench.window import Window, choose, explicit
from octavo.errors import InvalidParameter
from octavo.workload.arrivals import Closed
from octavo.workload.generate import requests_of
from octavo.workload.lengths import FixedDelay
from octavo.workload.spec import Workload

__all__ = ["ALONE_REQUESTS", "Campaign", "Plan", "alone_of", "with_clients"]

ALONE_REQUESTS = 30
"""Of the run with one request at a time with which a search begins: enough for a median, and soon over."""
_NO_PAUSE = FixedDelay(seconds=0.0)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be run."""

    workload: Workload
    repeats: int = 1
    """Of each load, each with a seed of its own, so that no prompt of a run is in the server's cache from another."""
    rates: tuple[float, ...] = ()
    """Of a sweep."""
    finds_rates: bool = False
    """A sweep whose rates are found: up to where the server no longer keeps up."""
    clients: tuple[int, ...] = ()
    """The same for a closed loop."""
    slo: Slo | None = None
    searches: bool = False
    """For the highest rate that meets the SLO."""
    tolerance: float = 0.05
    highest: float | None = None
    """Above this rate nothing is tried."""
    warmup_s: float | None = None
    timeout_s: float = 600.0
    max_s: float | None = None
    """Of each run's sending."""

    def loads(self) -> list[Workload]:
        """What each run is made of, but for its seed. Raises WorkloadError where the arrivals have no one rate."""
        if self.rates:
            return [self.workload.at_rate(rate) for rate in self.rates]
        if self.clients:
            return [with_clients(self.workload, count) for count in self.clients]
        return [self.workload]


def with_clients(workload: Workload, clients: int) -> Workload:
    """The same sessions in a closed loop of so many clients; they think as before, if they did.

    Raises InvalidParameter for a workload whose end is only a time.
    """
    before = workload.arrivals
    if workload.requests is None and workload.trace is None:
        raise InvalidParameter(
            "A closed loop needs a number of requests, and the workload has only a duration; give --requests."
        )
    closed = (
        msgspec.structs.replace(before, clients=clients)
        if isinstance(before, Closed)
        else Closed(clients=clients)
    )
    return msgspec.structs.replace(workload, arrivals=closed, duration_s=None)


def alone_of(workload: Workload) -> Workload:
    """The same with one request at a time and no pause between: what the server can do at best."""
    fewer = min(workload.requests or ALONE_REQUESTS, ALONE_REQUESTS)
    one = with_clients(msgspec.structs.replace(workload, requests=fewer), 1)
    if isinstance(one.arrivals, Closed):
        arrivals = msgspec.structs.replace(one.arrivals, think=_NO_PAUSE, start_over_s=0.0)
        one = msgspec.structs.replace(one, arrivals=arrivals)
    if one.sessions is None:
        return one
    tools = one.sessions.tools
    tools = None if tools is None else msgspec.structs.replace(tools, delay=_NO_PAUSE)
    return msgspec.structs.replace(
        one, sessions=msgspec.structs.replace(one.sessions, think=_NO_PAUSE, tools=tools)
    )


class _Stopped(Exception):
    """The run was stopped from outside: no further one is begun."""


class Campaign:
    """The runs of a plan, in order."""

    def __init__(
        self,
        target: Target,
        plan: Plan,
        record: Record,
        *,
        live: Live,
        stop: asyncio.Event,
        scrape: client.Scrape | None = None,
        on_run: Callable[[], None] = lambda: None,
        clock_ns: ClockNs = time.perf_counter_ns,
    ) -> None:
        """`on_run` is called when the record has one more run. `stop` ends the run that is on, and all."""
        self._clock_ns = clock_ns
        self._target = target
        self._plan = plan
        self._record = record
        self._live = live
        self._stop = stop
        self._scrape = scrape
        self._on_run = on_run

    async def go(self) -> None:
        """All of it, or until it is stopped. Raises BenchError for an SLO that no rate meets, after all runs."""
        try:
            if self._plan.searches:
                await self._search()
            elif self._plan.finds_rates:
                seed, repeats = self._plan.workload.seed, self._plan.repeats
                await sweep_auto(self._told, self._alone, repeats=repeats, first_seed=seed)
            else:
                await self._each_load()
        except _Stopped:
            pass

    async def _each_load(self) -> None:
        """Every load once, then every load again: what drifts meanwhile does so for all."""
        loads = self._plan.loads()
        total = len(loads) * self._plan.repeats
        for number in range(total):
            load = loads[number % len(loads)]
            title = f"run {number + 1} of {total}, " if total > 1 else ""
            run = await self._run(load, self._plan.workload.seed + number, title)
            if total > 1:
                self._tell(run)

    async def _at(self, rate: float, seed: int) -> Measures:
        return self._measured(await self._run(self._plan.workload.at_rate(rate), seed, ""))

    async def _alone(self, seed: int) -> Measures:
        return self._measured(await self._run(alone_of(self._plan.workload), seed, "alone, "))

    async def _told(self, rate: float, seed: int) -> Measures:
        run = await self._run(self._plan.workload.at_rate(rate), seed, "")
        self._tell(run)
        return self._measured(run)

    async def _search(self) -> None:
        plan = self._plan
        assert plan.slo is not None

        def on_progress(step: Step) -> None:
            if step.low is not None or step.high is not None:
                low = f"{step.low:g}" if step.low is not None else "none yet"
                high = f"{step.high:g}" if step.high is not None else "none yet"
                self._live.say(f"  highest rate that meets it: {low}; lowest that does not: {high}")

        def on_trial(trial: Trial[Measures]) -> None:
            load = show_load(trial.rate, 1 if trial.rate is None else None)
            self._live.say(
                f"{load}, {trial.decision}{'' if trial.settled else ', not sure yet'}: {trial.why}"
            )

        await search(
            self._at,
            plan.slo,
            alone=self._alone,
            highest=plan.highest,
            tolerance=plan.tolerance,
            repeats=plan.repeats,
            first_seed=plan.workload.seed,
            on_progress=on_progress,
            on_trial=on_trial,
        )

    async def _run(self, workload: Workload, seed: int, title: str) -> Run:
        workload = msgspec.structs.replace(workload, seed=seed)
        rate = workload.rate
        clients = workload.clients
        self._live.begin(
            f"{title}{show_load(rate, clients)}",
            requests=workload.requests,
            span_s=workload.duration_s if clients is None else None,
        )
        run = await client.run(
            self._target,
            requests_of(workload),
            clients=clients,
            rate=rate,
            seed=seed,
            timeout_s=self._plan.timeout_s,
            max_s=self._plan.max_s,
            on_change=self._live.update,
            scrape=self._scrape,
            stop=self._stop,
            clock_ns=self._clock_ns,
        )
        self._live.clear()
        self._record.runs.append(run)
        self._on_run()
        if self._stop.is_set():
            raise _Stopped
        return run

    def _measured(self, run: Run) -> Measures:
        slo = self._plan.slo
        return measure(run, window=self._window(run), slo=slo if slo is not None and slo.requests else None)

    def _window(self, run: Run) -> Window:
        return choose(run) if self._plan.warmup_s is None else explicit(run, self._plan.warmup_s)

    def _tell(self, run: Run) -> None:
        """A line for one of several runs."""
        if not run.exchanges:
            return
        measures = self._measured(run)
        names = ("request_rate", "output_rate", "ttft_p50", "ttft_p99", "itl_p99", "error_share")
        answered, output, p50, p99, itl, errors = (show(name, measures.value(name)) for name in names)
        self._live.say(
            f"{show_load(run.rate, run.clients)}: {answered}, {output}, TTFT p50 {p50}, p99 {p99}, ITL p99 {itl}, "
            f"errors {errors}{'' if measures.valid else ', NOT VALID'}"
        )
