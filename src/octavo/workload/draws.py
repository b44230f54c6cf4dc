"""Random numbers that are the same on every machine and Python version. Knows bytes and arithmetic, no workload.

A counter-based generator: SHAKE-128 (FIPS 202) over the seed and a path of names, so `("session", 7)` always has
the same numbers, whatever else is drawn. `random.Random` promises only `random()` to stay the same between versions
(its docs, "Notes on Reproducibility"), NumPy's Generator promises nothing (NEP 19), and the C library's log and exp
differ in their last bit between machines; here are only operations that IEEE 754 fixes: + - × ÷ and square roots.
"""

from __future__ import annotations

import hashlib
import math
import sys
from array import array
from collections.abc import Sequence

__all__ = ["Draws", "exp", "log", "power", "token_ids"]

_LN2_HIGH = 0.6931471803691238
_LN2_LOW = 1.9082149292705877e-10
"""The sum is ln 2; the high part times a small integer is exact (as in fdlibm)."""
_CHUNK_BYTES = 256


def log(x: float) -> float:
    """The natural logarithm of a positive x, within 4 units in the last place or 1e-15."""
    mantissa, exponent = math.frexp(x)
    if mantissa < 0.7071067811865476:
        mantissa, exponent = mantissa * 2.0, exponent - 1
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square, term = s * s, 0.0
    for odd in range(25, 1, -2):  # atanh's series; s² < 0.0295, so the rest is below 2**-60
        term = square * (1.0 / odd + term)
    return exponent * _LN2_HIGH + (2.0 * (s + s * term) + exponent * _LN2_LOW)


def exp(x: float) -> float:
    """e to the x; 0 below -700, and never above e to the 700."""
    if x < -700.0:
        return 0.0
    x = min(x, 700.0)
    twos = math.floor(x / 0.6931471805599453 + 0.5)
    rest = (x - twos * _LN2_HIGH) - twos * _LN2_LOW
    total = 1.0
    for n in range(18, 0, -1):  # |rest| < 0.35
        total = 1.0 + total * rest / n
    return math.ldexp(total, twos)


def power(base: float, exponent: float) -> float:
    """A positive base to any exponent."""
    return exp(exponent * log(base))


class Draws:
    """The numbers of one path under one seed. Each object begins at the first number."""

    def __init__(self, seed: int, *path: str | int) -> None:
        self._key = _key(seed, path)
        self._chunk = 0
        self._numbers: list[int] = []
        self._spare: float | None = None

    def uniform(self) -> float:
        """In (0, 1), both ends excluded; 52 bits."""
        if not self._numbers:
            words = array("Q", hashlib.shake_128(b"%s#%d" % (self._key, self._chunk)).digest(_CHUNK_BYTES))
            if sys.byteorder == "big":
                words.byteswap()
            self._numbers = words.tolist()
            self._numbers.reverse()
            self._chunk += 1
        return ((self._numbers.pop() >> 12) + 0.5) * 2.0**-52

    def below(self, n: int) -> int:
        """A whole number in [0, n)."""
        return int(self.uniform() * n)

    def exponential(self) -> float:
        """Mean 1."""
        return -log(self.uniform())

    def normal(self) -> float:
        """Mean 0, deviation 1: Marsaglia's polar method."""
        if self._spare is not None:
            spare, self._spare = self._spare, None
            return spare
        while True:
            a, b = 2.0 * self.uniform() - 1.0, 2.0 * self.uniform() - 1.0
            square = a * a + b * b
            if 0.0 < square < 1.0:
                scale = math.sqrt(-2.0 * log(square) / square)
                self._spare = b * scale
                return a * scale

    def gamma(self, shape: float) -> float:
        """Mean `shape`, scale 1: Marsaglia and Tsang (2000)."""
        if shape < 1.0:
            return self.gamma(shape + 1.0) * power(self.uniform(), 1.0 / shape)
        d = shape - 1.0 / 3.0
        c = 1.0 / math.sqrt(9.0 * d)
        while True:
            x = self.normal()
            root = 1.0 + c * x
            if root > 0.0:
                v = root * root * root
                if log(self.uniform()) < 0.5 * x * x + d - d * v + d * log(v):
                    return d * v

    def weighted(self, cumulated: Sequence[float]) -> int:
        """A place in `cumulated`, the running sums of weights, by weight."""
        import bisect

        return min(bisect.bisect_right(cumulated, self.uniform() * cumulated[-1]), len(cumulated) - 1)


def token_ids(seed: int, key: str, start: int, stop: int, vocabulary: int) -> list[int]:
    """Tokens `start` to `stop` of an endless text without meaning that `key` names, each in [0, vocabulary)."""
    words = array("I", hashlib.shake_128(_key(seed, ("tokens", key))).digest(4 * stop))
    assert words.itemsize == 4
    if sys.byteorder == "big":
        words.byteswap()
    return [(word * vocabulary) >> 32 for word in words[start:stop]]


def _key(seed: int, path: Sequence[str | int]) -> bytes:
    return "/".join(["octavo-workload-1", str(seed), *map(str, path)]).encode()
