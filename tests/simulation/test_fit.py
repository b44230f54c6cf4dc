"""Requests that can never be served are counted before a run, and a workload of nothing else is refused."""

from __future__ import annotations

import pytest

from octavo.errors import CapacityError
from octavo.scheduling.admission import Capacity
from octavo.simulation.asking import Asking
from octavo.simulation.fit import fit
from octavo.workload.request import Part, Request

CAPACITY = Capacity(vocab_size=1 << 31, max_model_len=100, max_running=8, kv_tokens=320)


def requests(*sizes: tuple[int, int]) -> list[Request]:
    return [
        Request(index=n, at_s=0.0, session=n, parts=(Part(f"own/{n}", prompt),), output_tokens=output)
        for n, (prompt, output) in enumerate(sizes)
    ]


def test_what_fits_is_not_spoken_of() -> None:
    found = fit(requests((50, 50), (99, 1)), CAPACITY, Asking())
    assert (found.refused, found.cut, found.longest, found.words()) == (0, 0, 100, None)


def test_the_refused_and_the_cut_are_counted_with_their_numbers() -> None:
    found = fit(requests((100, 1), (120, 5), (60, 41), (10, 5)), CAPACITY, Asking(), allow_refused=True)
    assert (found.requests, found.refused, found.cut, found.longest) == (4, 2, 1, 125)
    words = found.words() or ""
    assert "2 of 4 requests are refused, such as: The prompt has 100 tokens" in words
    assert "1 of 4 answers are cut" in words and "125 tokens" in words and "limit is 100" in words


def test_a_request_that_can_never_be_served_is_an_error_unless_that_is_allowed() -> None:
    with pytest.raises(
        CapacityError, match=r"1 of the workload's 2 requests can never be served .*has 120 tokens"
    ):
        fit(requests((120, 5), (10, 5)), CAPACITY, Asking())


def test_a_workload_of_which_nothing_fits_is_an_error() -> None:
    with pytest.raises(
        CapacityError, match="None of the workload's 2 requests can be served: The prompt has 200"
    ):
        fit(requests((200, 1), (300, 1)), CAPACITY, Asking())
    with pytest.raises(CapacityError, match="n is 9, but at most 8 sequences run at once"):
        fit(requests((20, 1)), CAPACITY, Asking(n=9))


def test_beams_may_need_more_than_one_answer_would() -> None:
    """Four beams of 96 tokens are 384 of 320."""
    found = fit(requests((56, 40), (16, 16)), CAPACITY, Asking(beam_width=4), allow_refused=True)
    assert found.refused == 1 and "may need 384 tokens" in found.reason
