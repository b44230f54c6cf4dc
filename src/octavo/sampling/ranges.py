"""What a number of the sampling parameters may be: for the check, for schemas, for docs. Knows no use of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from octavo.errors import InvalidParameter

__all__ = ["MAX_BEAMS", "MAX_LOGPROBS", "MAX_N", "RANGES", "Range"]

MAX_N = 128
MAX_LOGPROBS = 100
MAX_BEAMS = 32
_INT32 = 2**31 - 1


class Range(NamedTuple):
    """From `low` to `high`, both allowed unless `above`."""

    low: float
    high: float
    whole: bool = False
    """Whole numbers only."""
    above: bool = False
    """`low` itself is not allowed."""

    def check(self, name: str, value: object) -> None:
        """Raise InvalidParameter for what is outside."""
        if self.whole:
            if not isinstance(value, int) or isinstance(value, bool):
                raise InvalidParameter(f"{name} must be a whole number, not {value!r}.", name)
            if not self.low <= value <= self.high:
                raise InvalidParameter(f"{name} is {value}; it must lie in {self.low} … {self.high}.", name)
            return
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
            raise InvalidParameter(f"{name} must be a finite number, not {value!r}.", name)
        if not self.low <= value <= self.high or (self.above and value == self.low):
            bound = "above" if self.above else "at least"
            raise InvalidParameter(
                f"{name} is {value}; it must be {bound} {self.low} and at most {self.high}.", name
            )

    def schema(self) -> dict[str, float]:
        """As JSON schema has it."""
        return {"exclusiveMinimum" if self.above else "minimum": self.low, "maximum": self.high}

    def __str__(self) -> str:
        low, high = (int(one) if one == int(one) else one for one in (self.low, self.high))
        return f"{'above ' if self.above else ''}{low} to {high}"


RANGES: Mapping[str, Range] = {
    "n": Range(1, MAX_N, whole=True),
    "best_of": Range(1, MAX_N, whole=True),
    "beam_width": Range(0, MAX_BEAMS, whole=True),
    "length_penalty": Range(-10.0, 10.0),
    "temperature": Range(0.0, 100.0),
    "top_k": Range(-1, _INT32, whole=True),
    "top_p": Range(0.0, 1.0, above=True),
    "min_p": Range(0.0, 1.0),
    "repetition_penalty": Range(1e-6, 100.0),  # a logit divided by less would overflow
    "frequency_penalty": Range(-2.0, 2.0),
    "presence_penalty": Range(-2.0, 2.0),
    "seed": Range(-(2**63), 2**63 - 1, whole=True),
    "min_tokens": Range(0, _INT32, whole=True),
    "max_tokens": Range(0, _INT32, whole=True),
    "logprobs": Range(0, MAX_LOGPROBS, whole=True),
    "prompt_logprobs": Range(0, MAX_LOGPROBS, whole=True),
}
"""By the parameter's name; where it is None there is nothing to check."""
