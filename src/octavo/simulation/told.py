"""From the steps that a server tells of (GET /watch) to what a fit takes. Knows steps, no request."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from octavo.protocol.watch import Worked
from octavo.simulation.calibrate import Observed
from octavo.simulation.coldness import RATES, colds_of
from octavo.timing.step_time import StepLoad

__all__ = ["groups_of", "lengths_of", "load_of", "ranges_of"]

_GROUPS = 300
"""That are fitted: steps that are alike count as one, with their mean."""
_EXACT = 16
"""Up to so many tokens, each number is a kind of step of its own."""
_COLDS, _MIDDLE = 3, RATES.index(0.8)
"""So finely are steps told apart by how cold they found the caches, at one of the rates."""
_LONGEST_GAP_S = 1.0
"""Between two steps of an engine that had work: what is longer is no part of the first."""


def load_of(step: Worked) -> StepLoad:
    return StepLoad(step.tokens, step.samples, step.kv_tokens, step.pairs, step.sequences)


def lengths_of(steps: Sequence[Worked]) -> list[float]:
    """Seconds of each, with what the engine does until the next one begins, where that has work."""
    found = [
        after.began_s - one.began_s
        if not one.idle and 0 <= after.began_s - one.ended_s < _LONGEST_GAP_S
        else one.ended_s - one.began_s
        for one, after in pairwise(steps)
    ]
    return [*found, steps[-1].ended_s - steps[-1].began_s] if steps else []


def ranges_of(steps: Sequence[Worked]) -> dict[str, tuple[int, int]]:
    """The least and the most of each of StepLoad's numbers."""
    return {
        name: (min(column), max(column))
        for name, column in zip(StepLoad._fields, zip(*map(load_of, steps), strict=True), strict=True)
    }


def groups_of(steps: Sequence[Worked]) -> list[Observed]:
    """Steps that are alike, so many together that each group counts for about as many."""
    kinds: dict[tuple[int, ...], list[tuple[StepLoad, float, tuple[float, ...]]]] = defaultdict(list)
    colds = colds_of(map(load_of, steps))
    for step, seconds, cold in zip(steps, lengths_of(steps), colds, strict=True):
        if seconds > 0 and step.tokens:
            kinds[(*_kind(step), round(_COLDS * cold[_MIDDLE]))].append((load_of(step), seconds, cold))
    size = max(len(steps) // _GROUPS, 1)
    found = []
    for alike in kinds.values():
        alike.sort(key=lambda one: one[0])
        for start in range(0, len(alike), size):
            part = alike[start : start + size]
            loads = tuple([load for load, _, _ in part])
            cold = tuple(map(sum, zip(*[one for _, _, one in part], strict=True)))
            found.append(Observed(loads, sum([one for _, one, _ in part]), steps=len(part), cold=cold))
    return found


def _kind(step: Worked) -> tuple[int, ...]:
    tokens = step.tokens if step.tokens <= _EXACT else _EXACT + 4 * step.tokens.bit_length()
    return tokens, step.pairs.bit_length(), step.kv_tokens.bit_length()
