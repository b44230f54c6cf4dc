"""A watched load on a simulated server, as it is set or otherwise: what would have come of it. Knows no advice.

What had been computed when the watch began takes no time: those requests are given with it in their prompts, and the
first steps, in which it is taken in, cost nothing.
"""

from __future__ import annotations

import math

import msgspec

from octavo.bench.measures import measure
from octavo.bench.record import Exchange, Run
from octavo.bench.slo import Slo
from octavo.bench.window import Window
from octavo.engine.messages import Add
from octavo.errors import CapacityError, ClientError
from octavo.planning.setting import Setting
from octavo.sampling.params import SamplingParams
from octavo.simulation.calibrated import CalibratedPace, Watched
from octavo.simulation.cluster import Cluster
from octavo.simulation.guessing import Guessing
from octavo.simulation.replica import Replica
from octavo.simulation.routers import ROUTERS
from octavo.simulation.run import simulate
from octavo.timing.clock import ManualClock, microseconds
from octavo.timing.step_time import StepLoad
from octavo.workload.request import Request

__all__ = ["MEASURED", "Rehearsal", "Rehearsed", "numbers_of", "rehearse", "window_of"]

MEASURED = (
    "ttft_mean", "ttft_p50", "ttft_p95", "tpot_mean", "tpot_p50", "itl_p99", "e2e_mean", "e2e_p50", "e2e_p95",
    "output_rate", "cached_share", "kv_use_max", "server_running", "server_running_max", "server_waiting", "busy_share",
    "preemptions",
)  # fmt: skip


class Rehearsal(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be simulated, with all that it needs: equal ones have equal outcomes, in any process."""

    setting: Setting
    pace: CalibratedPace
    seen: dict[str, tuple[int, int]]
    """The least and the most of what steps had that the pace was fitted to."""
    guessing: Guessing | None
    requests: list[Request]
    counted: frozenset[int]
    """Indices of requests that are measured."""
    free_tokens: int
    warm: list[tuple[int, ...]] = []
    """Beginnings of prompts that are computed before, one after another."""
    clients: int | None
    length_s: float
    slo: str | None = None


class Rehearsed(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    values: dict[str, float | None] = {}
    lates: dict[str, float | None] = {}
    """Of the SLO's names."""
    outside: float = 0.0
    """Share of steps that had more of something than any that was seen."""
    unfit: str | None = None
    """Why nothing could be run."""


def rehearse(one: Rehearsal) -> Rehearsed:
    """Simulate it."""
    pace = _Begun(one.pace, one.seen)
    setting = one.setting
    try:
        config = setting.config()
        replicas = [
            Replica(
                config,
                pace,
                ManualClock(),
                guessing=one.guessing if setting.speculates else None,
            )
            for _ in range(setting.replicas)
        ]
        for replica in replicas:
            _warm(replica, one.warm)
        pace.begins(one.free_tokens)
        router = ROUTERS["least-loaded"]() if setting.replicas > 1 else None
        served = Cluster(replicas, router)
        run = simulate(served, one.requests, clients=one.clients)
    except (CapacityError, ClientError) as error:
        return Rehearsed(unfit=str(error))
    kept = [exchange for exchange in run.exchanges if exchange.index in one.counted]
    window = window_of(run.exchanges, one.clients, one.length_s)
    values, lates = numbers_of(msgspec.structs.replace(run, exchanges=kept), window, one.slo)
    most = max((count for count, _ in pace.outside.values()), default=0)
    return Rehearsed(values=values, lates=lates, outside=most / max(pace.steps, 1))


def window_of(exchanges: list[Exchange], clients: int | None, length_s: float) -> Window:
    """What is measured: the time that was watched; of a closed loop, from when all of its clients have asked a second
    time until the first of them has nothing left to ask."""
    if clients is None:
        return Window(start_us=0, end_us=microseconds(length_s), rule="the time that was watched")
    ends = sorted(one.end_us for one in exchanges)
    last = max((one.intended_us for one in exchanges), default=0)
    start = ends[clients - 1] if len(ends) > 2 * clients else 0
    return Window(start_us=min(start, last), end_us=last + 1, rule="while all clients ask")


def numbers_of(
    run: Run, window: Window, slo: str | None
) -> tuple[dict[str, float | None], dict[str, float | None]]:
    """Of a run that was watched or simulated: its numbers, and those of the SLO with failed requests as late."""
    wanted = None if slo is None else Slo.parse(slo)
    measures = measure(run, window=window, slo=wanted)
    parts = [] if wanted is None else [part.name for part in wanted.parts]
    values = {name: measures.value(name) for name in dict.fromkeys([*MEASURED, *parts])}
    return values, {name: measures.late(name) for name in parts}


def _warm(replica: Replica, beginnings: list[tuple[int, ...]]) -> None:
    """As much as there is room for: what was used first comes last, and stays the longest."""
    room = replica.capacity.kv_tokens
    params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True, seed=0)
    for number, ids in enumerate(beginnings):
        if len(ids) + 1 < min(room, replica.capacity.max_model_len):
            replica.add(Add(f"warm/{number}", ids, params, 0.0))
            while not replica.idle:
                replica.advance()


class _Begun(Watched):
    """A pace that takes no time until `begins`, and then none for steps that compute what had been computed before."""

    def __init__(self, pace: CalibratedPace, seen: dict[str, tuple[int, int]]) -> None:
        super().__init__(pace, seen)
        self._free: float = math.inf

    def begins(self, free_tokens: int) -> None:
        """What comes now counts, but for so many tokens of prompts."""
        self._free = free_tokens

    def seconds(self, load: StepLoad) -> float:
        if self._free == math.inf:
            return 0.0
        if self._free > 0 and load.pairs:
            self._free -= load.tokens
            return 0.0
        self._free = 0
        return super().seconds(load)
