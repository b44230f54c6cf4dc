"""How long a step takes: a model with a few terms, fitted from the steps that were. Knows loads and seconds, no plan.

A step is one pass over the weights (`per step`), and then work for each token, for each token that is chosen from, for
each stored token that a decode reads, and for each pair of a prompt's token with one before it. Vidur (Agrawal et al.
2024, arXiv:2405.05465) predicts steps from such terms too, with a forest for each operator; here five factors must do,
because they are fitted while the engine runs, in microseconds, and can be inverted: which chunk just fits?
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul
from typing import NamedTuple

import msgspec

__all__ = ["StepLoad", "StepTime", "TimedLoad"]

_REFIT_EVERY = (8, 32)
"""Observed steps between two fits: at first, and after _EARLY_FITS of them."""
_EARLY_FITS = 25
_MEMORY = 0.1
"""Weight of a new step in its bucket, and in the drift, once there are ten."""
_LEAST_BUCKETS = 3
"""Different kinds of steps that must have been seen before anything is predicted."""
_TERMS = 4
"""Of a load, that the model knows: its first."""
_SWEEPS = 60
_EXACT = 8
"""Up to so many tokens, each number is a kind of step of its own."""
_KNEES = (0, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_FITS_OF_A_KNEE = 8
"""Fits after which another knee is tried."""
_BETTER = 0.95
"""How much less the error must be for it to be taken."""


class StepLoad(NamedTuple):
    """What a step has to do."""

    tokens: int = 0
    """That are computed."""
    samples: int = 0
    """Rows of logits: tokens that are chosen, or prompt tokens that are scored."""
    kv_tokens: int = 0
    """Stored tokens that the sequences which decode read."""
    pairs: int = 0
    """Of the other sequences: each computed token with every one up to it, itself too."""
    sequences: int = 0
    """That take part. The scheduler's own model has no term for them, a simulation's may."""

    def with_chunk(self, start: int, count: int, samples: int) -> StepLoad:
        """And one sequence more, which computes `count` tokens behind `start`."""
        tokens, samples, sequences = self.tokens + count, self.samples + samples, self.sequences + 1
        if count == 1:
            return StepLoad(tokens, samples, self.kv_tokens + start + 1, self.pairs, sequences)
        pairs = self.pairs + count * start + count * (count + 1) // 2
        return StepLoad(tokens, samples, self.kv_tokens, pairs, sequences)


class TimedLoad(msgspec.Struct, frozen=True, array_like=True):
    """A step that was measured."""

    load: StepLoad
    seconds: float


class _Bucket:
    """Steps of one kind, as their mean: of recent ones the more."""

    __slots__ = ("count", "load", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.load = [0.0] * _TERMS
        self.seconds = 0.0

    def add(self, load: StepLoad, seconds: float) -> None:
        self.count += 1
        share = max(1 / self.count, _MEMORY)
        self.load = [old + share * (new - old) for old, new in zip(self.load, load[:_TERMS], strict=True)]
        self.seconds += share * (seconds - self.seconds)


class StepTime:
    """seconds(load) = w₀ + w₁·max(tokens − knee, 0) + w₂·samples + w₃·kv_tokens + w₄·pairs, all w ≥ 0.

    A few tokens cost no more than one while the processor waits for weights (the roofline of Williams et al. 2009): up
    to the knee.

    Steps are kept in buckets by their kind, so that a thousand decodes do not make it forget what a prompt costs. The
    factors minimise the relative error over the buckets (non-negative least squares by coordinate descent).
    Beside them a drift follows how much slower than that the last steps were: a machine that others use too.
    """

    def __init__(self, measured: Sequence[TimedLoad] = ()) -> None:
        """`measured`: steps known from before."""
        self._buckets: dict[tuple[int, ...], _Bucket] = {}
        self._factors = [0.0] * 5
        self._knee = 0
        self._since_fit = self._fits = 0
        self._drift = 1.0
        self._spread = 0.0
        for one in measured:
            self._place(one.load, one.seconds)
        self._fit()

    @property
    def known(self) -> bool:
        """Enough kinds of steps were seen to predict others."""
        return len(self._buckets) >= _LEAST_BUCKETS

    @property
    def factors(self) -> tuple[float, ...]:
        """Seconds per step, token beyond the knee, sample, KV token read and pair."""
        return tuple(self._factors)

    def observe(self, load: StepLoad, seconds: float) -> None:
        """A step with this load took so long."""
        if not load.tokens or seconds <= 0:
            return
        if self.known:
            ratio = min(max(seconds / max(self._fitted(load), 1e-9), 0.25), 4.0)
            self._drift += _MEMORY * (ratio - self._drift)
            self._spread += _MEMORY * (abs(ratio / self._drift - 1.0) - self._spread)
        new = self._place(load, seconds)
        self._since_fit += 1
        if new or self._since_fit >= _REFIT_EVERY[self._fits > _EARLY_FITS]:
            self._fit()

    def predict(self, load: StepLoad) -> float:
        """Seconds that a step with this load takes, at the machine's present pace. 0 while not `known`."""
        return self._fitted(load) * self._drift if self.known else 0.0

    def most_tokens(self, load: StepLoad, start: int, limit: int, target_s: float) -> int:
        """The most tokens, at most `limit`, that a sequence may compute behind `start` in a step that has `load`
        already, for the step to stay within `target_s` even if it takes longer by the usual spread."""
        target_s /= 1.0 + self._spread
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.predict(load.with_chunk(start, middle, 1)) <= target_s:
                low = middle
            else:
                high = middle - 1
        return low

    def _fitted(self, load: StepLoad) -> float:
        w0, w1, w2, w3, w4 = self._factors
        beyond = max(load.tokens - self._knee, 0)
        return w0 + w1 * beyond + w2 * load.samples + w3 * load.kv_tokens + w4 * load.pairs

    def _place(self, load: StepLoad, seconds: float) -> bool:
        """Is it of a new kind?"""
        kind = tuple(
            value.bit_length() // 2 if at else value if value <= _EXACT else _EXACT + value.bit_length()
            for at, value in enumerate(load[:_TERMS])
        )
        bucket = self._buckets.get(kind)
        new = bucket is None
        if bucket is None:
            bucket = self._buckets[kind] = _Bucket()
        bucket.add(load, seconds)
        return new

    def _fit(self) -> None:
        """The factors, and now and then the knee: the next one up or down where that explains the steps better."""
        self._since_fit = 0
        if not self.known:
            return
        self._fits += 1
        error, factors = self._factors_for(self._knee)
        if self._fits % _FITS_OF_A_KNEE == 1:
            at = _KNEES.index(self._knee)
            for knee in (*_KNEES[max(at - 1, 0) : at], *_KNEES[at + 1 : at + 2]):
                other, found = self._factors_for(knee)
                if other < _BETTER * error:
                    error, factors, self._knee = other, found, knee
        self._factors = factors

    def _factors_for(self, knee: int) -> tuple[float, list[float]]:
        """The sum of squared relative errors with this knee, and the factors that make it least."""
        rows = []
        for bucket in self._buckets.values():
            tokens, *others = bucket.load
            values = (1.0, max(tokens - knee, 0.0), *others)
            rows.append([value / bucket.seconds for value in values])
        size = len(self._factors)
        matrix = [[sum([row[i] * row[j] for row in rows]) for j in range(size)] for i in range(size)]
        target = [sum([row[i] for row in rows]) for i in range(size)]
        factors = list(self._factors)
        for _ in range(_SWEEPS):
            for i in range(size):
                if matrix[i][i] <= 0:
                    factors[i] = 0.0
                    continue
                rest = sum([matrix[i][j] * factors[j] for j in range(size) if j != i])
                factors[i] = max((target[i] - rest) / matrix[i][i], 0.0)
        errors = [sum(map(mul, row, factors)) - 1.0 for row in rows]
        return sum([error * error for error in errors]), factors
