"""How sure a number is: intervals of means, differences and shares, and the bootstrap. Knows arithmetic, no metric.

Student's t (1908) for a mean over repeats; Welch (1947) for the difference of two; Wilson (1927) for a share; Efron's
percentile bootstrap (1979), drawn by blocks, for a statistic of values that depend on each other inside a block (the
turns of a session). The t distribution comes from the regularised incomplete beta function by its continued fraction
(Lentz's way; DLMF 8.17.22), since SciPy is no part of the base install.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "Difference",
    "Interval",
    "bootstrap",
    "holm",
    "mean_interval",
    "paired",
    "quantile_of",
    "share_interval",
    "t_quantile",
    "t_tail",
    "welch",
]


@dataclass(frozen=True)
class Interval:
    """An estimate and where the truth is with the probability `level`."""

    estimate: float
    low: float
    high: float
    level: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Difference:
    """A difference of two means: b − a."""

    interval: Interval
    p_above: float
    """The probability of a difference as large as this or larger, if there were none: small says b is above a."""
    p_below: float
    """The same downwards: small says b is below a."""
    degrees: float
    """Degrees of freedom."""


def t_tail(t: float, degrees: float) -> float:
    """P(T > t) for Student's t. `degrees` > 0, not only whole ones."""
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    # The beta function is asked on the side where its argument is small, so that a far tail keeps its digits.
    half = 0.5 * _incomplete_beta(degrees / 2.0, 0.5, degrees / (degrees + t * t))
    return half if t >= 0 else 1.0 - half


@lru_cache(maxsize=1024)
def t_quantile(p: float, degrees: float) -> float:
    """The t with P(T <= t) = p. Raises ValueError where p is not between 0 and 1, or `degrees` not above 0."""
    if not 0.0 < p < 1.0 or not degrees > 0.0:
        raise ValueError(f"p is {p:g} and degrees {degrees:g}; p is between 0 and 1, degrees above 0.")
    if p < 0.5:
        return -t_quantile(1.0 - p, degrees)
    tail = 1.0 - p
    high = 1.0
    while t_tail(high, degrees) > tail:
        high *= 2.0
    low = 0.0
    for _ in range(100):  # halves to the last bit; Newton would be faster and has tails to fall off
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        low, high = (middle, high) if t_tail(middle, degrees) > tail else (low, middle)
    return 0.5 * (low + high)


def mean_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Of the mean of independent values. One value has the interval of all numbers: nothing is known of its spread.

    Raises ValueError for no value.
    """
    if not values:
        raise ValueError("The mean of no value has no interval.")
    mean, deviation = _moments(values)
    if len(values) == 1:
        return Interval(mean, -math.inf, math.inf, level)
    error = deviation / math.sqrt(len(values))
    reach = t_quantile(0.5 + level / 2.0, len(values) - 1) * error
    return Interval(mean, mean - reach, mean + reach, level)


def welch(a: Sequence[float], b: Sequence[float], level: float = 0.95) -> Difference:
    """Of mean b − mean a, whose spreads may differ. Raises ValueError unless each has two values."""
    if len(a) < 2 or len(b) < 2:
        raise ValueError("A difference needs two values on each side; one says nothing of its spread.")
    (mean_a, spread_a), (mean_b, spread_b) = _moments(a), _moments(b)
    share_a, share_b = spread_a**2 / len(a), spread_b**2 / len(b)
    total = share_a + share_b
    degrees = float(len(a) + len(b) - 2)
    if total > 0.0:
        # Welch and Satterthwaite: as exact as the smaller side at worst, as both together at best.
        degrees = 1.0 / ((share_a / total) ** 2 / (len(a) - 1) + (share_b / total) ** 2 / (len(b) - 1))
    return _difference(mean_b - mean_a, math.sqrt(total), degrees, level)


def paired(a: Sequence[float], b: Sequence[float], level: float = 0.95) -> Difference:
    """Of b − a where both have a value for the same things, in the same order.

    Raises ValueError for different lengths or fewer than two.
    """
    if len(a) != len(b) or len(a) < 2:
        raise ValueError("Pairs need as many values on each side, two at least.")
    apart = [y - x for x, y in zip(a, b, strict=True)]
    mean, deviation = _moments(apart)
    return _difference(mean, deviation / math.sqrt(len(apart)), float(len(apart) - 1), level)


def share_interval(hits: int, of: int, level: float = 0.95) -> Interval:
    """Of a share, by Wilson's score: it stays within 0 and 1, and 0 of 10 is not "surely 0".

    Raises ValueError where `hits` is not within 0 and `of`, or `of` is 0.
    """
    if not 0 <= hits <= of or of == 0:
        raise ValueError(f"{hits} of {of} is no share.")
    z = statistics.NormalDist().inv_cdf(0.5 + level / 2.0)
    share = hits / of
    scale = 1.0 + z * z / of
    centre = (share + z * z / (2 * of)) / scale
    reach = z / scale * math.sqrt(share * (1.0 - share) / of + z * z / (4 * of * of))
    low = 0.0 if hits == 0 else max(0.0, centre - reach)
    high = 1.0 if hits == of else min(1.0, centre + reach)
    return Interval(share, low, high, level)


def bootstrap(
    blocks: Sequence[Sequence[float] | NDArray[np.float64]],
    statistic: Callable[[NDArray[np.float64]], float],
    *,
    draws: int = 1000,
    seed: int = 0,
) -> list[float]:
    """The statistic of `draws` samples, sorted; each draws as many whole blocks as there are, with repetition.

    Use it with `quantile_of` for a percentile interval. Equal seeds give equal samples on every machine and version:
    NumPy keeps the streams of its bit generators (NEP 19), not those of its Generator. A sample without a value is
    left out. Raises ValueError for no block.
    """
    import numpy as np

    if not blocks:
        raise ValueError("There is no block to draw from.")
    arrays = [np.asarray(block, dtype=np.float64) for block in blocks]
    stream = np.random.PCG64(seed)
    found = []
    for _ in range(draws):
        raw = np.asarray(stream.random_raw(len(arrays)), dtype=np.uint64)
        places = ((raw >> np.uint64(32)) * np.uint64(len(arrays))) >> np.uint64(32)
        sample = np.concatenate([arrays[place] for place in places.tolist()])
        if sample.size:
            found.append(float(statistic(sample)))
    return sorted(found)


def quantile_of(ordered: Sequence[float], q: float) -> float:
    """Of sorted values, with linear steps between them. Raises ValueError for none."""
    if not ordered:
        raise ValueError("No value has no quantile.")
    place = q * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    low, high = ordered[below], ordered[above]
    if low == high:  # also where both are infinite
        return low
    return low + (high - low) * (place - below)


def holm(p_values: Sequence[float]) -> list[float]:
    """P values that hold for all together (Holm, 1979): the chance of even one false alarm stays what each says.

    It assumes nothing of how the metrics depend on each other, and finds all that Bonferroni's correction finds.
    """
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    adjusted = [0.0] * len(p_values)
    worst = 0.0
    for rank, place in enumerate(order):
        worst = max(worst, min(1.0, p_values[place] * (len(p_values) - rank)))
        adjusted[place] = worst
    return adjusted


def _moments(values: Sequence[float]) -> tuple[float, float]:
    """Mean and a sample's deviation, exact for equal values: their computed mean may miss them in its last bit."""
    if min(values) == max(values):
        return values[0], 0.0
    return statistics.fmean(values), statistics.stdev(values)


def _difference(difference: float, error: float, degrees: float, level: float) -> Difference:
    if error == 0.0:  # no spread at all: any difference is sure, and none is no difference
        interval = Interval(difference, difference, difference, level)
        return Difference(interval, 0.0 if difference > 0 else 1.0, 0.0 if difference < 0 else 1.0, degrees)
    reach = t_quantile(0.5 + level / 2.0, degrees) * error
    interval = Interval(difference, difference - reach, difference + reach, level)
    t = difference / error
    return Difference(interval, t_tail(t, degrees), t_tail(-t, degrees), degrees)


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised I_x(a, b)."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    if x > (a + 1.0) / (a + b + 2.0):  # the fraction converges fast on this side of the mean only
        return 1.0 - front * _fraction(b, a, 1.0 - x) / b
    return front * _fraction(a, b, x) / a


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function, from its front."""
    tiny = 1e-300
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > tiny else tiny)
    value = d
    for m in range(1, 1000):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0)),
        ):
            d, c = 1.0 + term * d, 1.0 + term / c
            d = 1.0 / (d if abs(d) > tiny else tiny)
            c = c if abs(c) > tiny else tiny
            value *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return value
