"""How large a number of a sum may be, so that no step of it ends in infinity. Knows bounds and sentences."""

from __future__ import annotations

import math

from octavo.errors import InvalidParameter

__all__ = ["MOST", "check_amount"]

MOST = 1e12
"""Money, watts, tokens, turns: more of anything is a slip of the hand."""


def check_amount(name: str, value: float | None, unit: str = "", *, most: float = MOST) -> None:
    """Raises InvalidParameter unless it is None, or from 0 to `most`."""
    if value is None or 0.0 <= value <= most:
        return
    told = f"{name} is {value:g}{f' {unit}' if unit else ''}"
    if math.isfinite(value) and value > most:
        raise InvalidParameter(f"{told}, and {most:g} is the most that is taken; check its digits.", name)
    raise InvalidParameter(f"{told}; it is a number of 0 or more.", name)
