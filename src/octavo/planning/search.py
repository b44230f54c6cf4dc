"""The cheapest way to serve a workload within an SLO. Knows what to simulate next; simulates nothing itself.

1. Coarse: every machine, precision and tensor parallelism by its roofline (`space`): what does not fit, what cannot
   keep the SLO even alone, and how many replicas each needs at least, so what it costs at least.
2. In the order of that lower bound the least number of replicas that meets the SLO is searched by simulation. What
   costs more than twice the best found, at the least, is left out (branch and bound).
3. Around the best ones every knob is varied by itself: one that needs a replica fewer takes their place.
4. The plan is confirmed with several seeds, and so is what one replica fewer would miss; a knob that leaves more room
   at the same price is taken.

Waves of candidates are of a fixed size, so that the outcome is the same however many processes simulate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field

import msgspec

from octavo.bench.slo import Slo
from octavo.bench.trial import Trial
from octavo.planning.choice import Choice
from octavo.planning.journal import Journal
from octavo.planning.prices import Prices
from octavo.planning.runs import Runs, Told
from octavo.planning.space import Base, Space, bases
from octavo.planning.trying import Failing, Task, Tried, with_efficiency
from octavo.workload.spec import Workload
from octavo.workload.summary import Summary

__all__ = ["Candidate", "Found", "Search", "Sensitivity"]

_WAVE = 4
"""Candidates that are solved beside each other, whatever processes there are."""
_WORTH = 2.0
"""Times the best's cost: what must cost more is not looked at."""
_MOST_BASES = 24
_NEAR = 0.4
"""To a bound, in logarithms of times: 1.5 times too slow, or as much too fast."""
_TUNED = 3
_ROOMIER = 0.05
"""In logarithms of times over their bounds."""
_RATES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
"""Of the asked rate: points of the capacity curve."""
_FAILURES = 3
"""In one simulation, on average, where replicas die."""
_MOST_REQUESTS = 6000
"""Of one simulation."""


class Sensitivity(msgspec.Struct, kw_only=True):
    """What one knob, changed by itself, does to the plan."""

    knob: str
    value: str
    choice: Choice
    tried: Tried
    met: bool


@dataclass
class Candidate:
    """A base with the replicas that it needs."""

    base: Base
    choice: Choice
    trial: Trial[Tried]
    per_hour: float
    alone: bool = False
    """It was asked one request at a time, of the best kernels."""

    @property
    def met(self) -> bool:
        return self.trial.decision == "met"

    def value(self, name: str) -> float | None:
        """The mean over its runs."""
        values = [found for one in self.trial.outcomes if (found := one.value(name)) is not None]
        return sum(values) / len(values) if values else None


@dataclass
class Found:
    """What came of a search."""

    considered: list[Base]
    candidates: list[Candidate]
    """What was simulated and meets the SLO, the cheapest first."""
    unmet: list[Candidate]
    """What was simulated and does not, with as many replicas as were tried."""
    best: Candidate | None = None
    cheaper: Candidate | None = None
    """The best with one replica less, or the next cheaper base: what it misses is what binds. None: there is none."""
    sensitivities: list[Sensitivity] = field(default_factory=list)
    curve: list[tuple[float, Tried]] = field(default_factory=list)
    """Rates (sessions a second), and what came of the best at them."""
    ranges: dict[str, Trial[Tried]] = field(default_factory=dict)
    """The best with kernels that reach little and most of the machine's peaks."""
    simulations: int = 0
    taken_over: int = 0


class Search:
    """One search."""

    def __init__(
        self,
        space: Space,
        workload: Workload,
        summary: Summary,
        slo: Slo,
        prices: Prices,
        executor: Executor,
        journal: Journal,
        *,
        seeds: int = 3,
        requests: int = 300,
        workers: int = 2,
        failing: Failing | None = None,
        told: Told = lambda words, done, total: None,
    ) -> None:
        """`requests`: of one replica in each simulation. `failing`: replicas die while they serve."""
        self._space, self._workload, self._slo = space, workload, slo
        self._prices, self._runs = prices, Runs(executor, journal, told)
        self._seeds, self._requests, self._told = seeds, requests, told
        self._failing = failing
        self._threads = ThreadPoolExecutor(max(workers, 1))
        turns = summary.turns_mean
        sessions = workload.rate if workload.rate is not None else summary.rate
        self._rate = sessions * turns if sessions is not None and workload.clients is None else None
        """Requests a second that are asked for; None in a closed loop."""
        self._bases = bases(space, summary, slo, prices, self._rate)

    def run(self) -> Found:
        """All of it. Raises nothing for a workload that no machine can do: then there is no best."""
        try:
            return self._run()
        finally:
            self._threads.shutdown(cancel_futures=True)

    def _run(self) -> Found:
        able = [base for base in self._bases if base.why_not is None][:_MOST_BASES]
        found = Found(self._bases, [], [])
        done = 0
        while done < len(able):
            limit = _WORTH * min((one.per_hour for one in found.candidates), default=math.inf)
            wave = [one for one in able[done : done + _WAVE] if one.lowest_per_hour(self._rate) <= limit]
            if not wave:
                break
            self._told("machines", done, len(able))
            for candidate in self._threads.map(self._solve, wave, [limit] * len(wave)):
                (found.candidates if candidate.met else found.unmet).append(candidate)
            done += _WAVE
        found.candidates.sort(key=lambda one: one.per_hour)
        if found.candidates:
            self._tune(found)
            self._confirm(found)
            self._describe(found)
        found.simulations = self._runs.made
        found.taken_over = self._runs.taken_over
        return found

    # ---- how many replicas

    def _solve(self, base: Base, limit: float) -> Candidate:
        """The fewest replicas that meet the SLO in one run; or with the most that were tried, where none did."""
        least, most = base.least(self._rate), self._most(base, limit)
        alone = self._alone(base)
        if not alone.met:
            return alone
        guess = least
        if self._rate is not None and base.expected:
            guess = min(max(least, math.ceil(self._rate / base.expected)), most)
        tried: dict[int, Candidate] = {}

        def met(replicas: int) -> bool:
            if replicas not in tried:
                tried[replicas] = self._candidate(base, replicas)
            return tried[replicas].met

        if met(guess):
            while guess > least and met(guess - 1):
                guess -= 1
            return tried[guess]
        low, step = guess, 1
        while low + step <= most and not met(low + step):
            low, step = low + step, 2 * step
        if low + step > most:
            return tried[max(tried)]
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if met(middle) else (middle, high)
        return tried[high]

    def _most(self, base: Base, limit: float) -> int:
        assert base.per_hour is not None
        most = self._space.max_accelerators // base.deployment.tensor_parallel
        if math.isfinite(limit) and base.per_hour:
            most = min(most, int(limit / base.per_hour))
        return max(most, base.least(self._rate))

    def _alone(self, base: Base) -> Candidate:
        """One request at a time with the best kernels: where that misses the SLO nothing else need be tried."""
        choice = with_efficiency(Choice(deployment=base.deployment), "high")
        trial = self._trial([self._task(choice, 0, alone=True)])
        return Candidate(base, choice, trial, choice.per_hour(self._prices), alone=True)

    def _candidate(self, base: Base, replicas: int) -> Candidate:
        """Near a bound one run decides nothing: there it is asked with all seeds."""
        choice = Choice(deployment=base.deployment, replicas=replicas)
        trial = self._trial([self._task(choice, 0)])
        if abs(trial.excess) < _NEAR:
            return self._with_all_seeds(base, choice)
        return Candidate(base, choice, trial, choice.per_hour(self._prices))

    # ---- knobs

    def _tune(self, found: Found) -> None:
        """Each knob by itself, for the cheapest few: a replica fewer, or more room."""
        for place, candidate in enumerate(found.candidates[:_TUNED]):
            self._told("knobs", place, min(_TUNED, len(found.candidates)))
            fewer = self._with_fewer(candidate)
            if fewer is not None:
                found.candidates[place] = fewer
        found.candidates.sort(key=lambda one: one.per_hour)

    def _with_fewer(self, candidate: Candidate) -> Candidate | None:
        if candidate.choice.replicas <= candidate.base.least(self._rate):
            return None
        replicas = candidate.choice.replicas - 1
        choices = [
            msgspec.structs.replace(candidate.choice, deployment=one, replicas=replicas)
            for _, _, one in self._space.variations(candidate.choice.deployment)
        ]
        for choice, tried in zip(
            choices, self._runs.all([self._task(one, 0) for one in choices]), strict=True
        ):
            trial = self._judged([tried])
            if trial.decision == "met":
                return Candidate(candidate.base, choice, trial, choice.per_hour(self._prices))
        return None

    def _vary(self, best: Candidate) -> list[Sensitivity]:
        changed = list(self._space.variations(best.choice.deployment))
        choices = [msgspec.structs.replace(best.choice, deployment=one) for _, _, one in changed]
        outcomes = self._runs.all([self._task(one, 0) for one in choices])
        return [
            Sensitivity(knob=knob, value=value, choice=choice, tried=tried, met=self._met(tried))
            for (knob, value, _), choice, tried in zip(changed, choices, outcomes, strict=True)
        ]

    def _roomier(self, best: Candidate, varied: Sequence[Sensitivity]) -> Candidate:
        """What leaves clearly more room to the bounds at the same price, with all seeds too; else the best as it is."""
        in_one = self._judged(best.trial.outcomes[:1]).excess
        rooms = [(self._judged([one.tried]).excess, place) for place, one in enumerate(varied) if one.met]
        for excess, place in sorted(rooms)[:1]:
            if excess < in_one - _ROOMIER:
                other = self._with_all_seeds(best.base, varied[place].choice)
                if other.met and other.trial.excess < best.trial.excess - _ROOMIER:
                    return other
        return best

    # ---- several seeds

    def _confirm(self, found: Found) -> None:
        """With all seeds; where they say otherwise, a replica more or the next candidate."""
        for place, candidate in enumerate(list(found.candidates)):
            self._told("confirming", place, len(found.candidates))
            sure = found.candidates[place] = self._sure(candidate)
            if sure.met and all(one.per_hour >= sure.per_hour for one in found.candidates[place + 1 :]):
                break
        found.unmet += [one for one in found.candidates if not one.met]
        found.candidates = sorted((one for one in found.candidates if one.met), key=lambda one: one.per_hour)
        found.best = found.candidates[0] if found.candidates else None

    def _sure(self, candidate: Candidate) -> Candidate:
        """With all seeds, and two replicas more at the most where those say that they are needed."""
        sure = self._with_all_seeds(candidate.base, candidate.choice)
        for _ in range(2):
            if sure.met:
                break
            more = msgspec.structs.replace(sure.choice, replicas=sure.choice.replicas + 1)
            sure = self._with_all_seeds(candidate.base, more)
        return sure

    def _with_all_seeds(self, base: Base, choice: Choice) -> Candidate:
        outcomes = self._runs.all([self._task(choice, seed) for seed in range(self._seeds)])
        return Candidate(base, choice, self._judged(outcomes), choice.per_hour(self._prices))

    # ---- what surrounds the plan

    def _describe(self, found: Found) -> None:
        best = found.best
        if best is None:
            return
        self._told("what surrounds the plan", 0, None)
        found.sensitivities = self._vary(best)
        better = self._roomier(best, found.sensitivities)
        if better is not best:
            found.best = found.candidates[0] = best = better
            found.sensitivities = self._vary(best)
        if best.choice.replicas > 1:
            fewer = msgspec.structs.replace(best.choice, replicas=best.choice.replicas - 1)
            found.cheaper = self._with_all_seeds(best.base, fewer)
        else:
            cheaper = [one for one in found.unmet if one.per_hour < best.per_hour]
            found.cheaper = max(cheaper, key=lambda one: one.per_hour, default=None)
        found.ranges = {
            name: self._trial([self._task(with_efficiency(best.choice, name), 0)]) for name in ("low", "high")
        }
        if self._workload.rate is not None:
            rates = [self._workload.rate * part for part in _RATES]
            tasks = [self._task(best.choice, 0, rate=rate) for rate in rates]
            found.curve = list(zip(rates, self._runs.all(tasks), strict=True))

    # ---- simulations

    def _task(self, choice: Choice, seed: int, *, alone: bool = False, rate: float | None = None) -> Task:
        workload = self._workload if rate is None else self._workload.at_rate(rate)
        count = 20 if alone else min(self._count(choice.replicas), _MOST_REQUESTS)
        if workload.trace is None or alone:
            workload = msgspec.structs.replace(workload, requests=count, duration_s=None)
        return Task(
            choice=choice,
            workload=workload,
            slo=self._slo.text,
            seed=workload.seed + seed,
            alone=alone,
            failing=None if alone else self._failing,
        )

    def _count(self, replicas: int) -> int:
        """Requests of a run: where replicas die, it lasts until some have."""
        count = self._requests * replicas
        if self._failing is None or self._rate is None:
            return count
        return max(count, math.ceil(_FAILURES * self._failing.mtbf_s / replicas * self._rate))

    def _trial(self, tasks: Sequence[Task]) -> Trial[Tried]:
        return self._judged([self._runs.one(task) for task in tasks])

    def _judged(self, outcomes: Sequence[Tried]) -> Trial[Tried]:
        return Trial.of(self._slo, self._workload.rate, outcomes)

    def _met(self, tried: Tried) -> bool:
        return self._judged([tried]).decision == "met"
