"""Lengths in tokens and delays in seconds, as distributions. Knows nothing of when and by whom."""

from __future__ import annotations

import functools
import itertools
from typing import Annotated

import msgspec

from octavo.errors import WorkloadError
from octavo.workload.draws import Draws, exp, log, power

__all__ = [
    "Delay", "Empirical", "ExponentialDelay", "Fixed", "FixedDelay", "Kind", "Length", "Lognormal", "LognormalDelay",
    "LognormalPart", "Uniform", "Zipf", "draw_delay", "draw_length", "zipf_sums",
]  # fmt: skip

MAX_TOKENS = 10_000_000
MAX_RANKS = 1_000_000

_Tokens = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]
_Positive = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
_Sigma = Annotated[float, msgspec.Meta(ge=0, le=10)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class Kind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """One of several; its key `kind` says which."""


class Fixed(Kind, frozen=True, kw_only=True, tag="fixed"):
    """Always so many."""

    tokens: _Tokens


class Uniform(Kind, frozen=True, kw_only=True, tag="uniform"):
    """From `min` to `max`, both included, each as likely."""

    min: _Tokens
    max: _Tokens

    def __post_init__(self) -> None:
        _check_order(self.min, self.max)


class LognormalPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One hump: `median` e^(`sigma` × a normal number); its mean is median × e^(sigma²/2)."""

    median: _Positive
    sigma: _Sigma
    weight: _Positive = 1.0


class Lognormal(Kind, frozen=True, kw_only=True, tag="lognormal"):
    """A mixture of lognormal humps, rounded; what is outside `min` and `max` becomes the nearer of them."""

    parts: Annotated[tuple[LognormalPart, ...], msgspec.Meta(min_length=1)]
    min: _Tokens = 1
    max: _Tokens = MAX_TOKENS

    def __post_init__(self) -> None:
        _check_order(self.min, self.max)


class Zipf(Kind, frozen=True, kw_only=True, tag="zipf"):
    """From `min` to `max`; the n-th of them has the weight 1 / n^exponent."""

    exponent: Annotated[float, msgspec.Meta(ge=0, le=20)]
    min: _Tokens = 1
    max: _Tokens

    def __post_init__(self) -> None:
        _check_order(self.min, self.max)
        if self.max - self.min >= MAX_RANKS:
            raise ValueError(f"max is {self.max}; a Zipf length spans at most {MAX_RANKS} tokens")


class Empirical(Kind, frozen=True, kw_only=True, tag="empirical"):
    """One of `values`, each as likely, or by `weights`."""

    values: Annotated[tuple[_Tokens, ...], msgspec.Meta(min_length=1)]
    weights: tuple[Annotated[float, msgspec.Meta(ge=0, le=1e9)], ...] | None = None

    def __post_init__(self) -> None:
        if self.weights is not None and (len(self.weights) != len(self.values) or not sum(self.weights)):
            raise ValueError("weights must be as many as values, and not all 0")


Length = Fixed | Uniform | Lognormal | Zipf | Empirical


class FixedDelay(Kind, frozen=True, kw_only=True, tag="fixed"):
    """Always so long."""

    seconds: _Seconds


class ExponentialDelay(Kind, frozen=True, kw_only=True, tag="exponential"):
    """Without memory, as between keystrokes of many people."""

    mean_s: _Seconds


class LognormalDelay(Kind, frozen=True, kw_only=True, tag="lognormal"):
    """Mostly short, sometimes long, as reading and thinking are."""

    median_s: _Positive
    sigma: _Sigma
    max_s: _Positive = 86_400.0


Delay = FixedDelay | ExponentialDelay | LognormalDelay


def draw_length(length: Length, draws: Draws) -> int:
    """A number of tokens, at least 1."""
    match length:
        case Fixed(tokens=tokens):
            return tokens
        case Uniform(min=low, max=high):
            return low + draws.below(high - low + 1)
        case Lognormal(parts=parts, min=low, max=high):
            part = parts[0] if len(parts) == 1 else parts[draws.weighted(_part_sums(parts))]
            value = part.median * exp(part.sigma * draws.normal())
            return max(low, min(high, int(min(value, 1e15) + 0.5)))
        case Zipf(exponent=exponent, min=low, max=high):
            return low + draws.weighted(zipf_sums(high - low + 1, exponent))
        case Empirical(values=values, weights=None):
            return values[draws.below(len(values))]
        case Empirical(values=values, weights=weights):
            return values[draws.weighted(_sums(weights))]
    raise WorkloadError(f"{length!r} is no length.")


def draw_delay(delay: Delay, draws: Draws) -> float:
    """Seconds, at least 0."""
    match delay:
        case FixedDelay(seconds=seconds):
            return seconds
        case ExponentialDelay(mean_s=mean):
            return mean * draws.exponential()
        case LognormalDelay(median_s=median, sigma=sigma, max_s=longest):
            return min(longest, exp(log(median) + sigma * draws.normal()))
    raise WorkloadError(f"{delay!r} is no delay.")


@functools.lru_cache(16)
def zipf_sums(ranks: int, exponent: float) -> list[float]:
    """Running sums of 1 / n^exponent."""
    return list(itertools.accumulate(power(float(n), -exponent) for n in range(1, ranks + 1)))


@functools.lru_cache(64)
def _part_sums(parts: tuple[LognormalPart, ...]) -> list[float]:
    return list(itertools.accumulate(part.weight for part in parts))


@functools.lru_cache(16)
def _sums(weights: tuple[float, ...]) -> list[float]:
    return list(itertools.accumulate(weights))


def _check_order(low: int, high: int) -> None:
    if low > high:
        raise ValueError(f"min is {low} and max is {high}; min must not be above max")
