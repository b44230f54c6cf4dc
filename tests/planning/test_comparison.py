"""A course's worked answers, and what is not known is an error."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.errors import InvalidParameter
from octavo.planning.comparison import Comparison, compare
from octavo.planning.hosted import Turn
from octavo.planning.owned import Owned, Power
from octavo.planning.prices import Prices
from octavo.planning.sheet import Sheet
from octavo.planning.traffic import Traffic

LARGE, SMALL = "large:in=3,out=12", "small:in=0.25,out=0.80"
TURN = Turn(input=400, output=150)


def reckoned(
    *hosted: str, turns_per_day: float = 500_000, owned: Owned | None = None, peak: float = 1.0, **more: Any
) -> tuple[Comparison, Sheet]:
    sheet = Sheet()
    traffic = Traffic(turns_per_day=turns_per_day, turn=TURN, peak=peak)
    models = [Prices().hosted_model(one) for one in hosted]
    return compare(traffic, models, owned or Owned(per_month=2400), sheet, **more), sheet


def lines(sheet: Sheet) -> dict[str, float]:
    return {line.name: line.value for section in sheet.sections for line in section.lines}


def test_a_month_of_half_a_million_turns_a_day() -> None:
    made, sheet = reckoned(LARGE, SMALL)
    assert [round(one.per_month, 6) for one in made.hosted] == [45_000, 3_300]
    assert made.own is not None and made.own.per_month == 2400
    crossovers = [one.crossover_turns_per_day for one in made.hosted]
    assert crossovers == [pytest.approx(26_667, abs=0.5), pytest.approx(363_636, abs=0.5)]
    asked = lines(sheet)
    assert asked["requests"] == pytest.approx(5.79, abs=0.005)
    assert asked["output"] == pytest.approx(868, abs=0.5)
    assert asked["input"] == pytest.approx(2315, abs=0.5)
    assert made.cheapest is made.own


def test_with_a_second_machine_the_small_hosted_model_costs_less() -> None:
    made, sheet = reckoned(LARGE, SMALL, machines=2)
    assert made.own is not None and made.own.per_month == 4800
    assert made.cheapest.name == "small"
    _, sheet = reckoned(LARGE, SMALL)
    told = [note for section in sheet.sections for note in section.notes]
    assert any("With 2 machines against small" in note and "small is cheaper" in note for note in told)
    assert any("With 2 machines against large" in note and "local is still cheaper" in note for note in told)
    assert lines(sheet)["with 2 machines"] == 4800


def test_a_tenth_to_the_large_model() -> None:
    made, _ = reckoned(LARGE, SMALL, large_share=0.1)
    local, small = made.mixtures
    assert local.per_month == pytest.approx(6_900)
    assert small.per_month == pytest.approx(0.9 * 3_300 + 4_500)
    assert local.breaks_even_at == pytest.approx(0.2727, abs=0.00005)
    at_even, _ = reckoned(LARGE, SMALL, large_share=local.breaks_even_at or 0.0)
    assert at_even.mixtures[0].per_month == pytest.approx(at_even.mixtures[1].per_month)


def test_a_cascade_pays_for_both_answers() -> None:
    made, _ = reckoned(LARGE, SMALL, escalated=0.2)
    local, small = made.mixtures
    assert local.per_month == pytest.approx(2400 + 0.2 * 45_000)
    assert small.per_month == pytest.approx(3300 + 0.2 * 45_000)
    assert small.breaks_even_at == pytest.approx(1 - 3300 / 45_000)


def test_a_million_tokens_three_ways() -> None:
    made, _ = reckoned(LARGE)
    large = made.hosted[0]
    assert large.per_turn == pytest.approx(0.003)
    assert large.per_million_input == pytest.approx(0.003 / 400 * 1e6)
    assert large.per_million_output == pytest.approx(0.003 / 150 * 1e6)
    assert large.per_million_blended == pytest.approx(0.003 / 550 * 1e6)


def test_capacity_says_how_many_machines_and_when_one_more() -> None:
    made, _ = reckoned(LARGE, capacity=4.0, peak=2.0)
    assert made.machines == 3  # 11.57 a second at the peak
    assert made.utilization == pytest.approx(500_000 / 86_400 / 12)
    assert made.next_machine_turns_per_day == pytest.approx(4.0 * 3 / 2.0 * 86_400)
    assert made.hosted[0].crossover_utilization == pytest.approx(3 * 26_666.67 / (3 * 4 * 86_400), rel=1e-5)
    assert reckoned(LARGE, capacity=500_000 / 86_400)[0].machines == 1


def test_electricity_counts_by_how_busy_the_machine_is() -> None:
    owned = Owned(
        rent_per_hour=1.0,
        power=Power(watts_busy=700, watts_idle=100, price_per_kwh=0.30, pue=1.5),
        operations_per_month=50,
    )
    made, _ = reckoned(LARGE, owned=owned, capacity=10.0)
    busy = 500_000 / 86_400 / 10
    watts = (100 + busy * 600) * 1.5
    month = 720 + watts / 1000 * 720 * 0.30 + 50
    assert made.own is not None and made.own.per_month == pytest.approx(month)
    assert made.joules_per_output_token == pytest.approx(watts / (500_000 / 86_400 * 150))
    # At the crossover a month of both costs the same, with the electricity of that many turns.
    turns = made.hosted[0].crossover_turns_per_day or 0.0
    at, _ = reckoned(LARGE, owned=owned, capacity=10.0, turns_per_day=turns)
    assert at.own is not None and at.own.per_month == pytest.approx(at.hosted[0].per_month)


def test_a_machine_whose_electricity_costs_more_than_a_turn_elsewhere_never_pays() -> None:
    owned = Owned(per_month=100, power=Power(watts_busy=5000, watts_idle=0, price_per_kwh=0.5))
    made, sheet = reckoned("free:in=0.01,out=0.01", owned=owned, capacity=0.01)
    assert made.hosted[0].crossover_turns_per_day is None
    assert any(note.startswith("Never against free") for section in sheet.sections for note in section.notes)


def test_what_is_bought_is_written_off() -> None:
    owned = Owned(purchase=20_000, years=4, residual=2_000)
    assert owned.month(30, None, Sheet()) == pytest.approx(18_000 / (4 * 365) * 30)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "none of them"),
        ({"per_month": 1.0, "rent_per_hour": 1.0}, "per_month and rent_per_hour"),
        ({"purchase": 100.0}, "years"),
        ({"purchase": 100.0, "years": 0.0}, "years is 0"),
        ({"per_month": -1.0}, "per_month is -1"),
        ({"purchase": 100.0, "years": 2.0, "residual": 200.0}, "residual"),
    ],
)
def test_a_machine_has_one_price(settings: dict[str, float], said: str) -> None:
    with pytest.raises(InvalidParameter, match=said):
        Owned(**settings)  # type: ignore[arg-type]


def test_prices_in_two_currencies_are_not_compared() -> None:
    with pytest.raises(InvalidParameter, match=r"EUR and USD"):
        reckoned(LARGE, owned=Owned(per_month=10, currency="EUR"))


def test_nothing_to_compare_is_an_error() -> None:
    traffic = Traffic(turns_per_day=10, turn=TURN)
    with pytest.raises(InvalidParameter, match="nothing to reckon"):
        compare(traffic, [], None, Sheet())
