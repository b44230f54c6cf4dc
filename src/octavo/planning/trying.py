"""One choice, simulated: what came of it, small enough to keep and to send between processes. Knows no search."""

from __future__ import annotations

import hashlib
import math

import msgspec

from octavo.bench.backlog import Backlog
from octavo.bench.measures import Measures, measure
from octavo.bench.record import Run
from octavo.bench.slo import Slo
from octavo.errors import CapacityError, SettingsError
from octavo.planning.choice import Choice, Setting
from octavo.simulation.cluster import Cluster
from octavo.simulation.failures import Failures
from octavo.simulation.replica import Replica
from octavo.simulation.roofline import EFFICIENCIES, Efficiency
from octavo.simulation.routers import ROUTERS
from octavo.simulation.run import simulate
from octavo.workload.arrivals import Closed
from octavo.workload.generate import requests_of
from octavo.workload.spec import Workload

__all__ = ["KEPT", "Failing", "Task", "Tried", "attempt"]

KEPT = (
    "ttft_mean", "ttft_p50", "ttft_p95", "ttft_p99", "itl_p50", "itl_p95", "itl_p99", "tpot_p50", "tpot_p99",
    "e2e_p50", "e2e_p99", "offered_rate", "request_rate", "output_rate", "input_rate", "goodput", "error_share",
    "concurrency", "concurrency_max", "cached_share", "kv_use", "kv_use_max", "server_running", "server_waiting",
    "server_running_max", "busy_share", "preemptions",
)  # fmt: skip
"""Of a run's numbers, with those that the SLO names."""


class Failing(msgspec.Struct, frozen=True, kw_only=True):
    """How often replicas die, and for how long."""

    mtbf_s: float
    """From a start to a failure, in the mean."""
    repair_s: float

    @property
    def share(self) -> float:
        """Of its time that a replica is dead."""
        return self.repair_s / (self.mtbf_s + self.repair_s)


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be simulated; equal tasks have equal outcomes."""

    choice: Choice | Setting
    workload: Workload
    slo: str
    seed: int
    alone: bool = False
    """One request at a time, whatever the arrivals."""
    failing: Failing | None = None

    def key(self) -> str:
        """The same for equal tasks, here and in another process."""
        return hashlib.blake2b(msgspec.json.encode(self), digest_size=12).hexdigest()


class Tried(msgspec.Struct, kw_only=True):
    """What came of it; what octavo.bench.trial asks of measures."""

    seed: int
    values: dict[str, float | None]
    lates: dict[str, float | None]
    """Of the SLO's names, failed requests counted as infinitely late: None is infinite here, and what was not measured
    is missing."""
    backlog: Backlog | None = None
    unfit: str | None = None
    """Why nothing could be run."""
    failures: int = 0
    """Of replicas, while it ran."""

    @property
    def valid(self) -> bool:
        return True

    @property
    def problems(self) -> tuple[str, ...]:
        return ()

    def value(self, name: str) -> float | None:
        return self.values.get(name)

    def late(self, name: str) -> float | None:
        if name not in self.lates:
            return None
        found = self.lates[name]
        return math.inf if found is None else found


def attempt(task: Task) -> Tried:
    """Simulate it. In any process: everything that it needs is in the task."""
    slo = Slo.parse(task.slo)
    try:
        run, failures = _run(task)
    except (CapacityError, SettingsError) as error:
        return Tried(seed=task.seed, values={}, lates={}, unfit=str(error))
    return _kept(task.seed, measure(run, slo=slo), slo, failures)


def _run(task: Task) -> tuple[Run, int]:
    choice = task.choice
    workload = msgspec.structs.replace(task.workload, seed=task.seed)
    if task.alone:
        workload = msgspec.structs.replace(workload, arrivals=Closed(clients=1), trace=None)
    failures = None
    if (one := task.failing) is not None and not task.alone:
        failures = Failures(mtbf_s=one.mtbf_s, repair_s=one.repair_s, seed=task.seed)

    def start(place: int) -> Replica:
        return choice.replica()

    cluster = Cluster(
        [start(place) for place in range(choice.replicas)],
        ROUTERS[choice.router](),
        failures=failures,
        restart=start,
    )
    run = simulate(
        cluster,
        requests_of(workload),
        host=choice.host,
        clients=workload.clients,
        seed=workload.seed,
        rate=workload.rate,
    )
    return run, cluster.failed


def _kept(seed: int, measures: Measures, slo: Slo, failures: int) -> Tried:
    lates: dict[str, float | None] = {}
    for part in slo.parts:
        late = measures.late(part.name)
        if late is not None:
            lates[part.name] = None if math.isinf(late) else late
    names = dict.fromkeys([*KEPT, *(part.name for part in slo.parts)])
    return Tried(
        seed=seed,
        values={name: measures.value(name) for name in names},
        lates=lates,
        backlog=measures.backlog,
        failures=failures,
    )


def with_efficiency(choice: Choice, name: str) -> Choice:
    """The same on a machine whose kernels reach another part of its peaks."""
    efficiency: Efficiency = EFFICIENCIES[name]
    return msgspec.structs.replace(
        choice, deployment=msgspec.structs.replace(choice.deployment, efficiency=efficiency)
    )
