"""From steps that were measured to the terms of a pace, with error bars. Knows loads and seconds, no engine.

Non-negative least squares of the relative error, by the active set of Lawson and Hanson (Solving Least Squares
Problems, 1974, chapter 23). The cost of tokens is a curve: one term for each stretch between two of its points, none
of which can be negative, so that the curve never falls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from octavo.errors import BenchError
from octavo.simulation.calibrated import CalibratedPace, Fitted, HostWork
from octavo.simulation.coldness import RATES
from octavo.timing.step_time import StepLoad

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]

__all__ = ["Observed", "fit", "non_negative"]

_POINTS = (0, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Of the curve, as far as steps were seen: kernels change their ways at tiles, which are powers of two."""
_DRAWS = 200
"""Of the bootstrap."""
_FOLDS = 5
_LEAST_KINDS = 12
_OTHERS = ("per_sample_s", "per_sequence_s", "per_kv_token_s", "per_pair_s")


@dataclass(frozen=True, slots=True)
class Observed:
    """Steps of one kind, or one request's way to its first token."""

    loads: tuple[StepLoad, ...]
    """Of the steps that `seconds` holds, one or several."""
    seconds: float
    prompt_tokens: int | None = None
    """Of a request that came from outside: its host work is in `seconds` too."""
    steps: int = 1
    """That were measured for it."""
    cold: tuple[float, ...] = ()
    """How cold its steps found the caches, all together, for each of coldness.RATES; () where that is not known."""


def fit(seen: Sequence[Observed], *, seed: int = 0) -> tuple[CalibratedPace, HostWork, Fitted]:
    """The terms that explain what was seen best. Raises BenchError where that is too little."""
    if len(seen) < _LEAST_KINDS:
        raise BenchError(
            f"Only {len(seen)} kinds of steps were measured, and {_LEAST_KINDS} are needed; measure a server "
            "that takes more."
        )
    points = _points(max(load.tokens for one in seen for load in one.loads))
    names = [
        "per_step_s",
        *(f"token_s[{at}]" for at in points[1:]),
        *_OTHERS,
        "per_request_s",
        "per_prompt_token_s",
        "per_cold_s",
    ]
    rows = np.array([_row(one, points) for one in seen])
    seconds = np.array([[one.seconds] for one in seen])
    colds = np.array([one.cold or (0.0,) * len(RATES) for one in seen])
    tried = [np.hstack((rows, colds[:, [place]])) / seconds for place in range(len(RATES))]
    fits = [non_negative(matrix, np.ones(len(seen))) for matrix in tried]
    errors = [float(np.linalg.norm(m @ t - 1.0)) for m, t in zip(tried, fits, strict=True)]
    best = errors.index(min(errors))
    matrix, terms = tried[best], fits[best]
    chance = np.random.default_rng(seed)
    draws = np.empty((_DRAWS, len(terms)))
    for place in range(_DRAWS):
        draws[place] = non_negative(matrix[chance.integers(len(seen), size=len(seen))], np.ones(len(seen)))
    stretches = slice(1, len(points))
    for one in (terms, *draws):
        one[stretches] = np.cumsum(one[stretches] * np.diff(points))
    low, high = np.percentile(draws, (2.5, 97.5), axis=0)
    p50, p95 = np.percentile(_left_out(matrix, chance), (50, 95))
    named = dict(zip(names, map(float, terms), strict=True))
    pace = CalibratedPace(
        per_step_s=named["per_step_s"],
        tokens=points,
        token_s=(0.0, *(float(one) for one in np.maximum.accumulate(terms[stretches]))),
        **{name: named[name] for name in _OTHERS},
        per_cold_s=named["per_cold_s"],
        cold_stays=RATES[best] if named["per_cold_s"] else 0.0,
    )
    host = HostWork(per_request_s=named["per_request_s"], per_prompt_token_s=named["per_prompt_token_s"])
    return (
        pace,
        host,
        Fitted(
            low=dict(zip(names, map(float, low), strict=True)),
            high=dict(zip(names, map(float, high), strict=True)),
            error_p50=float(p50),
            error_p95=float(p95),
            steps=sum(one.steps for one in seen),
            kinds=len(seen),
        ),
    )


def non_negative(matrix: Matrix, target: Matrix) -> Matrix:
    """x ≥ 0 with the least |matrix · x − target|²."""
    scale = np.linalg.norm(matrix, axis=0)
    used = scale > 0
    scaled = matrix / np.where(used, scale, 1.0)
    size = matrix.shape[1]
    found, active = np.zeros(size), np.zeros(size, dtype=bool)
    for _ in range(10 * size):
        slope = scaled.T @ (target - scaled @ found)
        slope[active | ~used] = -np.inf
        best = int(np.argmax(slope))
        if slope[best] <= 1e-10 * max(float(np.linalg.norm(target)), 1e-300):
            break
        active[best] = True
        while True:
            tried = np.zeros(size)
            tried[active] = np.linalg.lstsq(scaled[:, active], target, rcond=None)[0]
            if (tried[active] > 0).all():
                found = tried
                break
            negative = active & (tried <= 0)
            apart = found[negative] - tried[negative]
            step = float(np.min(np.where(apart > 0, found[negative] / np.where(apart > 0, apart, 1.0), 0.0)))
            found = found + step * (tried - found)
            active &= found > 1e-14
            found[~active] = 0.0
            if not active.any():
                break
    return np.asarray(np.where(used, found / np.where(used, scale, 1.0), 0.0))


def _points(most: int) -> tuple[int, ...]:
    inner = [one for one in _POINTS if one < most]
    return (*inner, most)


def _row(one: Observed, points: tuple[int, ...]) -> list[float]:
    """What each term counts in it: steps, tokens in each stretch of the curve, and so on."""
    counts = [float(len(one.loads))]
    counts += [
        float(sum(min(max(load.tokens - start, 0), end - start) for load in one.loads))
        for start, end in pairwise(points)
    ]
    for name in ("samples", "sequences", "kv_tokens", "pairs"):
        counts.append(float(sum(getattr(load, name) for load in one.loads)))
    outside = one.prompt_tokens is not None
    return [*counts, float(outside), float(one.prompt_tokens or 0)]


def _left_out(matrix: Matrix, chance: np.random.Generator) -> Matrix:
    """Relative errors for kinds that the fit has not seen: each is left out once."""
    rows = len(matrix)
    fold = chance.permutation(rows) % _FOLDS
    errors = np.empty(rows)
    for one in range(_FOLDS):
        terms = non_negative(matrix[fold != one], np.ones(int((fold != one).sum())))
        errors[fold == one] = np.abs(matrix[fold == one] @ terms - 1.0)
    return errors
