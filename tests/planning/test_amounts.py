"""Numbers of a sum: infinite ones and slips of the hand are refused."""

from __future__ import annotations

import math

import pytest

from octavo.errors import InvalidParameter
from octavo.planning.amounts import MOST, check_amount


@pytest.mark.parametrize("value", [None, 0.0, 0.25, MOST])
def test_what_is_taken(value: float | None) -> None:
    check_amount("rent", value)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (-1.0, "rent is -1 USD; it is a number of 0 or more."),
        (math.nan, "rent is nan USD; it is a number of 0 or more."),
        (math.inf, "rent is inf USD; it is a number of 0 or more."),
        (2e12, "rent is 2e+12 USD, and 1e+12 is the most that is taken; check its digits."),
    ],
)
def test_what_is_refused(value: float, said: str) -> None:
    with pytest.raises(InvalidParameter) as raised:
        check_amount("rent", value, "USD")
    assert (str(raised.value), raised.value.param) == (said, "rent")
