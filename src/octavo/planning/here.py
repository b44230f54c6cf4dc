"""The cheapest setting of a server on a machine that was measured. Knows what to simulate next; simulates nothing.

The machine is there already, so a setting costs what it takes of it: threads first, since a core that it holds is idle
for everybody else, and then memory for K and V. A calibration is of one number of threads; several are searched from
the fewest threads on. With each:

1. With the most memory, knobs (policy, budget, sequences at once, prefix cache, speculation) are changed one at a time,
   each time the one that leaves most room, until the SLO is met or nothing helps.
2. The least memory is sought downwards from there, by halves; where one step less misses it, the knobs are tried again.
3. What was found is confirmed with several seeds, and so is what the next cheaper setting misses.

A setting meets the SLO only where it does with steps that take longer than was fitted, by the calibration's own error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from octavo.bench.slo import Slo
from octavo.bench.trial import Trial
from octavo.config import PolicyName
from octavo.errors import InvalidParameter
from octavo.planning.choice import Setting
from octavo.planning.trying import Task, Tried
from octavo.simulation.calibrated import Calibration
from octavo.simulation.measured import Measured
from octavo.workload.spec import Workload

if TYPE_CHECKING:
    from octavo.planning.runs import Runs

__all__ = ["Here", "HereFound", "HereSearch", "Settled", "sizes"]

_MIB = 1 << 20
_SIZES = 10
"""Memories, each half as large as the one before."""
_ROUNDS = 4
_HELPS = 0.02
"""In logarithms of times over their bounds."""
_ROOMIER = 0.05
_RATES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
"""Of the asked rate: points of the capacity curve."""


class Here(msgspec.Struct, frozen=True, kw_only=True):
    """The machine, and what each knob may be; the first of each is where a search begins."""

    model: str
    calibrations: tuple[Calibration, ...]
    """From the fewest threads on."""
    kv_bytes_per_token: float
    kv_memories: tuple[int, ...]
    """Bytes, rising."""
    policies: tuple[PolicyName, ...] = ("stall-free", "prefill-first", "continuous")
    budgets: tuple[int, ...] = (512, 256, 128)
    max_running: tuple[int, ...] = (64, 16)
    prefix_caches: tuple[bool, ...] = (True, False)
    speculations: tuple[str, ...] = ("off",)
    error: float | None = None
    """Of step times, in place of the calibration's own."""

    def start(self, calibration: Calibration, kv_memory_bytes: int) -> Setting:
        """With the first of every knob."""
        server = Measured(
            calibration=calibration,
            policy=self.policies[0],
            max_step_tokens=self.budgets[0],
            max_running=self.max_running[0],
            prefix_cache=self.prefix_caches[0],
            speculation=self.speculations[0],
        )
        return self.with_memory(Setting(model=self.model, server=server, kv_memory_bytes=0), kv_memory_bytes)

    def with_memory(self, one: Setting, kv_memory_bytes: int) -> Setting:
        tokens = max(int(kv_memory_bytes / self.kv_bytes_per_token), 1)
        server = msgspec.structs.replace(one.server, kv_tokens=tokens)
        return msgspec.structs.replace(one, server=server, kv_memory_bytes=kv_memory_bytes)

    def variations(self, one: Setting) -> Iterator[tuple[str, str, Setting]]:
        """What differs from it by one knob: the knob, its value, and the setting."""
        knobs: dict[str, Sequence[object]] = {
            "policy": self.policies,
            "max_step_tokens": self.budgets,
            "max_running": self.max_running,
            "prefix_cache": self.prefix_caches,
            "speculation": self.speculations,
        }
        for name, values in knobs.items():
            for value in values:
                if getattr(one.server, name) != value:
                    server = msgspec.structs.replace(one.server, **{name: value})
                    said = (
                        {True: "on", False: "off"}.get(value, str(value)) if value in (True, False) else value
                    )
                    yield name, str(said), msgspec.structs.replace(one, server=server)

    def error_of(self, calibration: Calibration) -> float:
        """So much longer or shorter, as a share, may steps take than was fitted."""
        return calibration.fitted.error_p95 if self.error is None else self.error


def sizes(calibrations: Sequence[Calibration], kv_bytes_per_token: float, longest: int) -> tuple[int, ...]:
    """Powers of two of MiB, up to what the largest of the measured servers had and down to one request of `longest`
    tokens; at least the largest. Raises InvalidParameter where that is less than a MiB."""
    most = max(one.limits.num_blocks * one.limits.block_size for one in calibrations) * kv_bytes_per_token
    found = [size * _MIB for size in (1 << place for place in range(20)) if size * _MIB <= most * 1.02]
    if not found:
        raise InvalidParameter(
            f"The calibrated server had {most / _MIB:.2g} MiB for K and V; name sizes with --kv-memory."
        )
    enough = [size for size in found if size >= longest * kv_bytes_per_token]
    return tuple(enough[-_SIZES:] or found[-1:])


@dataclass
class Settled:
    """A setting, and what came of it: as fitted, and with steps that take less and more."""

    choice: Setting
    error: float
    slow: Trial[Tried]
    """What decides."""
    typical: Trial[Tried] | None = None
    fast: Trial[Tried] | None = None

    @property
    def met(self) -> bool:
        return self.slow.decision == "met"

    @property
    def sure(self) -> bool:
        """Whether it is the same with steps that take less, and with those that take more."""
        return self.fast is None or self.fast.decision == self.slow.decision


@dataclass
class HereFound:
    """What came of a search."""

    best: Settled | None = None
    cheaper: Settled | None = None
    """The next cheaper setting, with the knobs that leave it most room."""
    others: list[Settled] = field(default_factory=list)
    """Every memory with every calibration, the cheapest first, with the best knobs that were found for it."""
    sensitivities: list[tuple[str, str, Settled]] = field(default_factory=list)
    curve: list[tuple[float, Tried]] = field(default_factory=list)


class HereSearch:
    """One search."""

    def __init__(
        self, here: Here, workload: Workload, slo: Slo, runs: Runs, *, seeds: int, requests: int
    ) -> None:
        """`runs`: what simulates. `requests`: of one simulation."""
        self._here, self._workload, self._slo, self._runs = here, workload, slo, runs
        self._seeds, self._requests = seeds, requests

    def run(self) -> HereFound:
        """All of it. Raises nothing for what cannot be met: then there is no best."""
        found = HereFound()
        ladders: list[list[Settled]] = []
        for calibration in self._here.calibrations:
            ladder, place = self._ladder(calibration)
            ladders.append(ladder)
            if place is not None:
                found.best = self._whole(ladder[place].choice)
                before = ladder[place - 1] if place else ladders[-2][-1] if len(ladders) > 1 else None
                found.cheaper = None if before is None else self._whole(before.choice)
                break
        found.others = self._with_typical([one for ladder in ladders for one in ladder])
        if found.best is not None:
            self._describe(found, found.best)
        return found

    # ---- one calibration

    def _ladder(self, calibration: Calibration) -> tuple[list[Settled], int | None]:
        """Every memory, rising, and the place of the least that meets the SLO with all seeds."""
        memories = self._here.kv_memories
        self._runs.told("knobs", 0, None)
        most = self._tuned(self._here.start(calibration, memories[-1]))
        if not most.met:
            return [self._tuned_at(most, memory) for memory in memories[:-1]] + [most], None
        place, knobs = self._least(most, len(memories) - 1)
        asked: dict[int, Settled] = {}
        while True:  # what one seed takes for enough, others may not
            sure = asked[place] = self._with_seeds(self._here.with_memory(knobs.choice, memories[place]))
            if sure.met or place == len(memories) - 1:
                break
            place += 1
        least = place if sure.met else len(memories) - 1
        below = [asked.get(at) or self._tuned_at(sure, memory) for at, memory in enumerate(memories[:least])]
        if not sure.met:
            return [*below, sure], None
        above = [self._one(self._here.with_memory(sure.choice, memory)) for memory in memories[place + 1 :]]
        return [*below, sure, *above], place

    def _least(self, knobs: Settled, place: int) -> tuple[int, Settled]:
        """The place of the least memory that one seed meets the SLO with, and the knobs for it."""
        memories, low = self._here.kv_memories, -1
        while place - low > 1:
            middle = (low + place) // 2
            tried = self._one(self._here.with_memory(knobs.choice, memories[middle]))
            if tried.met:
                place = middle
            else:
                low = middle
        while place > 0:
            other = self._tuned_at(knobs, memories[place - 1])
            if not other.met:
                break
            place, knobs = place - 1, other
        return place, knobs

    def _tuned_at(self, knobs: Settled, memory: int) -> Settled:
        return self._tuned(self._here.with_memory(knobs.choice, memory))

    def _tuned(self, begin: Setting) -> Settled:
        """With the knobs that meet the SLO, or come nearest to it."""
        best = self._one(begin)
        for _ in range(_ROUNDS):
            if best.met:
                break
            choices = [one for _, _, one in self._here.variations(best.choice)]
            tried = self._each(choices)
            nearest = min(tried, key=lambda one: one.slow.excess, default=best)
            if nearest.slow.excess > best.slow.excess - _HELPS:
                break
            best = nearest
        return best

    # ---- what surrounds the plan

    def _describe(self, found: HereFound, best: Settled) -> None:
        self._runs.told("what surrounds the plan", 0, None)
        found.sensitivities = self._vary(best.choice)
        in_one = self._judged(best.slow.outcomes[:1]).excess
        for _, _, one in sorted(found.sensitivities, key=lambda row: row[2].slow.excess)[:1]:
            if one.slow.excess < in_one - _ROOMIER:  # clearly more room, for nothing
                other = self._whole(one.choice)
                if other.slow.excess < best.slow.excess - _ROOMIER:
                    found.best = best = other
                    found.sensitivities = self._vary(best.choice)
        if self._workload.rate is not None:
            rates = [self._workload.rate * part for part in _RATES]
            slow = best.choice.with_times(1.0 + best.error)
            tasks = [self._task(slow, 0, self._workload.at_rate(rate)) for rate in rates]
            found.curve = list(zip(rates, self._runs.all(tasks), strict=True))

    def _vary(self, choice: Setting) -> list[tuple[str, str, Settled]]:
        varied = list(self._here.variations(choice))
        outcomes = self._each([one for _, _, one in varied])
        outcomes = self._with_typical(outcomes)
        return [(knob, value, one) for (knob, value, _), one in zip(varied, outcomes, strict=True)]

    # ---- simulations

    def _whole(self, choice: Setting) -> Settled:
        """With all seeds, and with steps as fitted, shorter and longer."""
        error = self._here.error_of(choice.server.calibration)
        ends = [1.0 + error, 1.0, max(1.0 - error, 0.1)]
        tasks = [self._task(choice.with_times(times), seed) for times in ends for seed in range(self._seeds)]
        outcomes = self._runs.all(tasks)
        slow, typical, fast = (
            self._judged(outcomes[at * self._seeds : (at + 1) * self._seeds]) for at in range(3)
        )
        return Settled(choice, error, slow, typical, fast)

    def _with_seeds(self, choice: Setting) -> Settled:
        error = self._here.error_of(choice.server.calibration)
        slow = choice.with_times(1.0 + error)
        outcomes = self._runs.all([self._task(slow, seed) for seed in range(self._seeds)])
        return Settled(choice, error, self._judged(outcomes))

    def _one(self, choice: Setting) -> Settled:
        return self._each([choice])[0]

    def _each(self, choices: Sequence[Setting]) -> list[Settled]:
        """With steps that take longer, and one seed."""
        errors = [self._here.error_of(one.server.calibration) for one in choices]
        tasks = [
            self._task(one.with_times(1.0 + error), 0) for one, error in zip(choices, errors, strict=True)
        ]
        return [
            Settled(choice, error, self._judged([tried]))
            for choice, error, tried in zip(choices, errors, self._runs.all(tasks), strict=True)
        ]

    def _with_typical(self, settled: Sequence[Settled]) -> list[Settled]:
        """With steps as fitted too, and one seed: numbers for tables."""
        outcomes = self._runs.all([self._task(one.choice, 0) for one in settled])
        return [
            replace(one, typical=one.typical or self._judged([tried]))
            for one, tried in zip(settled, outcomes, strict=True)
        ]

    def _task(self, choice: Setting, seed: int, workload: Workload | None = None) -> Task:
        asked = workload or self._workload
        if asked.trace is None:
            asked = msgspec.structs.replace(asked, requests=self._requests, duration_s=None)
        return Task(choice=choice, workload=asked, slo=self._slo.text, seed=asked.seed + seed)

    def _judged(self, outcomes: Sequence[Tried]) -> Trial[Tried]:
        return Trial.of(self._slo, self._workload.rate, outcomes)
