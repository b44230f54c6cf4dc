"""Which option of a running server to change, by what simulations of its own load say. Knows outcomes, no server."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median

import msgspec

from octavo.bench.definitions import definition, split
from octavo.bench.slo import Slo
from octavo.bench.trial import Trial
from octavo.planning.rehearsal import Rehearsed

__all__ = ["SHOWN", "Check", "Effect", "Remedy", "best_of", "checks", "judged"]

SHOWN = ("ttft_p50", "ttft_p95", "tpot_p50", "itl_p99", "e2e_p95", "output_rate")
"""What a change should bring, in tables."""
_TRUSTED = ("ttft_mean", "ttft_p95", "tpot_mean", "e2e_mean", "output_rate")
"""What a simulation must tell as it was."""
_FAR = {"ttft_mean": 1.0, "ttft_p95": 1.0, "tpot_mean": 0.3, "e2e_mean": 0.4, "output_rate": 0.2}
"""Relative differences beyond which it does not, up or down: a time to the first token hangs on chance where a queue
comes and goes."""
_NEAR_S = 0.05
"""A time that differs by less is never far off: a step and a message more or less."""
_GAIN = 0.1
"""A smaller change is none."""
_PRICE = 2.5
"""Times: what a number may become worse by, where answers are whole sooner all the same."""
_MOST_OFF = 1 / 3
"""That is put right: of times of milliseconds, a larger part is chance."""
_MOST = math.log(4)
"""Of one number's gain, that counts: four times as good or ten times, it is cured."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One number as it was, and as the simulation of the server says."""

    name: str
    seen: float | None
    simulated: float | None

    @property
    def off(self) -> float | None:
        """Relative: 0.1 is a tenth too much."""
        if not self.seen or self.simulated is None:
            return None
        return self.simulated / self.seen - 1

    @property
    def far(self) -> bool:
        off = self.off
        if self.name not in _FAR or self.seen is None or self.simulated is None or off is None:
            return False
        time = definition(split(self.name)[0].name).unit.startswith("s")
        if time and abs(self.simulated - self.seen) < _NEAR_S and not self.name.startswith("tpot"):
            return False
        return abs(math.log1p(off) if off > -1 else math.inf) > math.log1p(_FAR[self.name])


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """Of a change on one number: the value that it should have, and between what."""

    value: float
    low: float
    high: float
    ratio: float
    """To what it was."""


class Remedy(msgspec.Struct, kw_only=True):
    """A change, and what it should bring."""

    knob: str
    value: str
    option: str
    effects: dict[str, Effect] = {}
    better: list[str] = []
    worse: list[str] = []
    outside: float = 0.0
    """Share of its steps that had more of something than any that was seen."""
    unfit: str | None = None
    meets: bool | None = None
    """The target; None where there is none."""
    sure: bool = False
    """It was simulated with other draws of the load, too."""
    score: float = 0.0

    @property
    def helps(self) -> bool:
        """It makes something better, and nothing worse; or answers are whole sooner, though a part of them comes later,
        and far more is won than lost."""
        if not self.better or self.unfit is not None:
            return False
        if not self.worse:
            return True
        lost = [self.effects[name].ratio for name in self.worse]
        small = all(1 / _PRICE < ratio < _PRICE for ratio in lost)
        return "e2e_p95" in self.better and small and self.score > 1.0


def checks(seen: dict[str, float | None], simulated: Rehearsed) -> list[Check]:
    """How far off the simulation is."""
    others = ("server_running", "server_waiting", "cached_share")
    names = dict.fromkeys([*_TRUSTED, *SHOWN, *others])
    return [Check(name=name, seen=seen.get(name), simulated=simulated.values.get(name)) for name in names]


def judged(
    remedy: Remedy,
    off: dict[str, float],
    pairs: Sequence[tuple[Rehearsed, Rehearsed]],
    slo: Slo | None,
) -> Remedy:
    """With its effects. `pairs`: outcomes without and with the change, for the load as it was and for other draws of
    it. `off`: how far off the simulation of the server as it is was, relative, by the number's name: what others say
    is put right by that, and ranges are wider by it."""
    unfit = next((one.unfit for _, one in pairs if one.unfit is not None), None)
    if unfit is not None:
        remedy.unfit = unfit
        return remedy
    remedy.effects, remedy.better, remedy.worse, score = {}, [], [], 0.0
    remedy.outside = max(one.outside for _, one in pairs)
    remedy.sure = len(pairs) > 1
    for name in SHOWN:
        both = [
            (before, after)
            for without, with_ in pairs
            if (before := without.values.get(name)) and (after := with_.values.get(name))
        ]
        if not both:
            continue
        ratios = [after / before for before, after in both]
        right = 1 / (1 + max(min(off.get(name, 0.0), _MOST_OFF), -_MOST_OFF))
        wide = max(right, 1 / right)
        afters = [after * right for _, after in both]
        ratio, before = median(ratios), median([before for before, _ in both])
        remedy.effects[name] = Effect(
            value=median(afters), low=min(afters) / wide, high=max(afters) * wide, ratio=ratio
        )
        gain = -math.log(ratio) if definition(split(name)[0].name).better == "lower" else math.log(ratio)
        always = min(ratios) > 1 if ratio > 1 else max(ratios) < 1
        doubt = abs(math.log1p(max(off.get(name, 0.0), -0.9))) / 2
        if always and gain > max(math.log1p(_GAIN), doubt) and not _little(name, before, ratio):
            remedy.better.append(name)
        elif gain < -math.log1p(_GAIN) and not _little(name, before, ratio):
            remedy.worse.append(name)
        score += max(min(gain, _MOST), -_MOST)
    if slo is not None:
        trial = Trial.of(slo, None, [_Late(one) for _, one in pairs])
        remedy.meets = trial.decision == "met"
        score -= 10 * max(trial.excess, 0.0) if math.isfinite(trial.excess) else 1e6
    remedy.score = score
    return remedy


def best_of(remedies: Iterable[Remedy], slo: Slo | None) -> Remedy | None:
    """What to change; None where nothing helps. With a target, one that meets it may make something else worse. A
    second server is bought only where no option does it."""
    able = [one for one in remedies if one.unfit is None and (one.helps or (slo is not None and one.meets))]
    ranked = sorted(
        able,
        key=lambda one: (slo is not None and not one.meets, one.knob == "servers", -one.score),
    )
    return ranked[0] if ranked else None


def _little(name: str, before: float, ratio: float) -> bool:
    """Milliseconds that nobody notices, of a time to the first token."""
    return name.startswith("ttft") and abs(before * ratio - before) < _NEAR_S / 2


class _Late:
    """A rehearsal as octavo.bench.trial asks of it."""

    valid = True
    problems: tuple[str, ...] = ()
    backlog = None

    def __init__(self, one: Rehearsed) -> None:
        self._one = one

    def value(self, name: str) -> float | None:
        return self._one.values.get(name)

    def late(self, name: str) -> float | None:
        return self._one.lates.get(name)
