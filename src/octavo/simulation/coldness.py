"""What a long step leaves behind for the next ones: weights that have left the caches. Knows loads, no plan.

While a step computes many tokens it reads each weight once in a long time, and what else uses the caches takes the
weights' place. The decodes that come next read them from memory, and the caches take them in again bit by bit: right
after a prompt a decode of one sequence took 1.5 times as long as ten steps later (docs/simulation.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from octavo.timing.step_time import StepLoad

__all__ = ["RATES", "Coldness", "colds_of"]

RATES = (0.5, 0.65, 0.75, 0.8, 0.85, 0.9)
"""Shares that a fit tries: so much of the coldness is left after each step."""
_MANY = 32
"""Tokens besides the decodes', after which a step has left 1 − 1/e of what it can leave cold."""


class Coldness:
    """Of one machine, from step to step."""

    __slots__ = ("full_s", "now", "stays")

    def __init__(self, full_s: float, stays: float) -> None:
        """`full_s`: what a step takes longer where all is cold. `stays`: the share that is left after a step."""
        self.full_s = full_s
        self.stays = stays
        self.now = 0.0
        """For the step that comes next: 0 is warm, 1 is cold."""

    @property
    def seconds(self) -> float:
        """What the next step takes longer."""
        return self.full_s * self.now

    def after(self, load: StepLoad) -> None:
        """It has run."""
        self.now *= self.stays
        if (more := load.tokens - load.sequences) > 0:
            self.now = max(self.now, 1.0 - math.exp(-more / _MANY))

    def decodes_s(self, steps: int) -> list[float]:
        """What each of the next steps takes longer, if no prompt comes; it is only looked ahead."""
        found, now = [], self.now
        for _ in range(steps):
            found.append(self.full_s * now)
            now *= self.stays
        return found

    def after_decodes(self, steps: int) -> None:
        """So many have run: to the last bit as one by one."""
        for _ in range(steps):
            self.now *= self.stays


def colds_of(loads: Iterable[StepLoad]) -> list[tuple[float, ...]]:
    """Of steps one after another, the first on a warm machine: how cold each found it, for each of RATES."""
    states = [Coldness(1.0, rate) for rate in RATES]
    found = []
    for load in loads:
        found.append(tuple([one.now for one in states]))
        for one in states:
            one.after(load)
    return found
