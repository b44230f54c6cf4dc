"""A run of a paper's setting, by hand and by closed forms, and the search for the highest rate."""

from __future__ import annotations

import pytest

from octavo.simulation.papers.trial import Served, highest_rate, holding, utilization_for
from octavo.simulation.papers.vllm import MACHINES, system, tokens_share
from octavo.workload.arrivals import Poisson
from octavo.workload.lengths import Fixed
from octavo.workload.spec import Workload

PROMPT, ANSWER = 160, 96
ALIKE = Workload(
    arrivals=Poisson(rate=100.0), input=Fixed(tokens=PROMPT), output=Fixed(tokens=ANSWER), requests=70
)


def held(served: Served) -> tuple[float, float, int]:
    memory = holding(served, ALIKE).memory
    return tokens_share(memory), memory.running, memory.most_running


def test_reserving_the_longest_holds_as_many_requests_as_there_are_ranges_of_it() -> None:
    """15,700 slots are 7 ranges of 2,048 tokens; with 160 + 48 tokens on average a tenth of a range is filled."""
    share, running, most = held(system("Orca (Max)"))
    assert most == 15_700 // 2048 == 7
    assert running == pytest.approx(7, rel=0.05)
    # In the step that computes token k of the answer, the k − 1 before it and the prompt are stored.
    assert share == pytest.approx((PROMPT + (ANSWER - 1) / 2) / 2048, rel=0.02)


def test_an_exact_range_wastes_what_is_not_written_yet_and_a_power_of_two_no_more_where_it_is_one() -> None:
    """160 + 96 is 256: half of the answer is missing on average, and rounding up adds nothing."""
    exact = held(system("Orca (Oracle)"))
    assert exact[0] == pytest.approx((PROMPT + (ANSWER - 1) / 2) / 256, rel=0.03)
    assert held(system("Orca (Pow2)")) == exact
    assert exact[2] == 15_696 // 256


def test_pages_waste_half_a_block_a_sequence_at_most() -> None:
    """Half a block of 16 beside 208 tokens: 3.7 %; and the pool holds more sequences than exact ranges."""
    share, _, most = held(system("vLLM"))
    assert 1 - 16 / PROMPT < share < 1
    assert share == pytest.approx(1 - 7.5 / (PROMPT + ANSWER / 2), abs=0.015)
    assert most > 15_696 // 256


@pytest.mark.parametrize("machine", MACHINES, ids=lambda one: one.model)
def test_each_machine_of_the_paper_s_table_has_its_slots(machine: object) -> None:
    [found] = [one for one in MACHINES if one is machine]
    limits = system("vLLM", found).settings.limits
    assert 0 <= found.slots - limits.num_blocks * limits.block_size <= limits.block_size


def test_more_slots_than_the_memory_has_are_an_error_of_the_table() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        utilization_for("opt-13b", "a100-40", 20_000)


@pytest.mark.parametrize("limit", [0.037, 0.9, 1.0, 5.3, 800.0])
def test_the_highest_rate_is_within_the_tolerance_of_the_limit(limit: float) -> None:
    asked: list[float] = []

    def holds(rate: float) -> bool:
        asked.append(rate)
        return rate <= limit

    found, runs = highest_rate(holds, 1.0, tolerance=1.05)
    assert found is not None and found <= limit <= found * 1.05
    assert runs == len(asked) < 20


def test_a_limit_that_no_rate_holds_is_none() -> None:
    assert highest_rate(lambda rate: False, 1.0)[0] is None
