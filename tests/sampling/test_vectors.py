"""A vector cut, brought to length 1, and written."""

from __future__ import annotations

import base64
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import InvalidParameter
from octavo.sampling.vectors import as_base64, check_dimensions, finished

floats = st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=40)


@given(values=floats, dimensions=st.none() | st.integers(1, 40))
def test_against_numpy(values: list[float], dimensions: int | None) -> None:
    vector = np.array(values, "<f4")
    assert finished(vector.tobytes(), dimensions, normalize=False) == vector[:dimensions].tolist()
    cut = vector[:dimensions].astype(np.float64)
    length = math.sqrt(math.fsum(cut * cut))
    got = np.array(finished(vector.tobytes(), dimensions))
    assert (got == got.astype(np.float32)).all()  # a float32 holds each
    assert np.abs(got * length - cut).max() <= 1e-6 * length


def test_nothing_has_no_direction() -> None:
    assert finished(bytes(12)) == [0.0, 0.0, 0.0]


@given(values=floats)
def test_base64_is_the_same_numbers(values: list[float]) -> None:
    vector = finished(np.array(values, "<f4").tobytes())
    assert np.frombuffer(base64.b64decode(as_base64(vector)), "<f4").tolist() == vector


@pytest.mark.parametrize("dimensions", [0, -1, 9])
def test_out_of_range(dimensions: int) -> None:
    check_dimensions(None, 8)
    check_dimensions(1, 8)
    check_dimensions(8, 8)
    with pytest.raises(InvalidParameter, match="8 numbers") as caught:
        check_dimensions(dimensions, 8)
    assert caught.value.param == "dimensions"
