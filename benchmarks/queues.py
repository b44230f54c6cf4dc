"""A scripted server of known capacity: the measures of an M/M/1 queue, in closed form, with noise between runs."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.bench.backlog import Backlog

__all__ = ["Queue", "Said"]


@dataclass(frozen=True)
class Said:
    """Measures that say what they are told."""

    values: dict[str, float | None]
    backlog: Backlog | None = None
    valid: bool = True
    problems: Sequence[str] = ()

    def value(self, name: str) -> float | None:
        return self.values.get(name)

    def late(self, name: str) -> float | None:
        return self.values.get(name)


@dataclass
class Queue:
    """Poisson arrivals, exponential services, `capacity` a second, first come first served.

    The time in the system is exponential with the mean 1 / (capacity - rate) (Kleinrock, 1975), so its 99th percentile
    is ln 100 times that. Beyond 98 % of the capacity a run of `requests` ends before the queue has its length: the
    percentile grows with what piles up. `noise` is the deviation of the logarithm from run to run.
    """

    capacity: float
    noise: float = 0.0
    requests: int = 300
    seed: int = 0
    client_limit: float = math.inf
    """Rates at which the client itself cannot keep up."""
    asked: list[tuple[float | None, int]] = field(default_factory=list)
    """Every run: its rate and its seed."""

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)

    def p99(self, rate: float) -> float:
        knee = 0.98 * self.capacity
        waited = math.log(100.0) / (self.capacity - min(rate, knee))
        return waited + max(0.0, self.requests / self.capacity * (1.0 - knee / rate))

    def rate_at(self, p99: float) -> float:
        """The highest rate whose percentile is at most this, where it is below 98 % of the capacity."""
        return self.capacity - math.log(100.0) / p99

    async def run_at(self, rate: float, seed: int) -> Said:
        self.asked.append((rate, seed))
        if rate > self.client_limit:
            return Said({}, valid=False, problems=["Requests were sent late."])
        wander = 0.2 * self.noise * min(1.0, rate / self.capacity) ** 4
        piled = max(0.0, 1.0 - self.capacity / rate) + self._draw.gauss(0.0, wander)
        return self._said(self.p99(rate), min(rate, self.capacity), piled)

    async def alone(self, seed: int) -> Said:
        self.asked.append((None, seed))
        return self._said(math.log(100.0) / self.capacity, self.capacity, None)

    def _said(self, p99: float, served: float, piled: float | None) -> Said:
        noisy = p99 * math.exp(self._draw.gauss(0.0, self.noise))
        backlog = None if piled is None else Backlog(share=piled, t=50 * piled, first=1.0, last=1.0)
        values = {"ttft_p99": noisy, "request_rate": served, "output_rate": 100 * served, "error_share": 0.0}
        return Said({**values, "goodput": 1.0}, backlog)
