"""Prices have sources and dates; one's own come first; what is unknown is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from octavo.errors import InvalidParameter
from octavo.planning.prices import HostedModel, Prices, Rent
from octavo.simulation.catalogue import hardware_names


def test_each_row_has_a_source_and_a_month() -> None:
    prices = Prices()
    assert len(prices.hosted) > 5 and len(prices.rents) > 5
    rows: list[HostedModel | Rent] = [*prices.hosted.values(), *prices.rents.values()]
    for row in rows:
        assert row.source
        assert re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", row.as_of)
    assert set(prices.rents) <= set(hardware_names())


def test_ones_own_prices_come_before_those_that_came_along(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        '[hosted.gpt-5-mini]\ninput = 9\noutput = 10\nsource = "a contract"\nas_of = "2026-12"\n'
        '[rents.h100]\nper_hour = 1.5\nsource = "a contract"\nas_of = "2026-12"\n'
    )
    prices = Prices(file)
    assert prices.hosted_model("gpt-5-mini")[1].input == 9
    assert prices.rent("H100").per_hour == 1.5
    assert prices.rent("l4").per_hour == Prices().rent("l4").per_hour


def test_a_name_that_is_not_known_is_told_with_those_that_are_near() -> None:
    with pytest.raises(InvalidParameter, match=r"did you mean .*gpt-4\.1-mini"):
        Prices().hosted_model("gpt-4.1-mni")
    with pytest.raises(InvalidParameter, match="the rent of 'mi300x' is unknown"):
        Prices().rent("mi300x")


ROW = "[{}]\n{}\nsource = 's'\nas_of = '2026-10'\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[hosted.x]\ninput = 1\n", "[hosted.x]: output is missing."),
        (
            ROW.format("hosted.x", "input = -1\noutput = 1"),
            "[hosted.x]: input: it has to be a number >= 0.0.",
        ),
        (ROW.format("hosted.x", "input = 1e300\noutput = 1"), "[hosted.x]: input: it has to be a number <= "),
        (
            ROW.format("hosted.x", "input = 1\noutput = 'two'"),
            "[hosted.x]: output: it has to be a number, got text.",
        ),
        (ROW.format("hosted.x", "input = 1\noutptu = 1"), "unknown field 'outptu'; did you mean output?"),
        (
            ROW.format("rents.l4", "per_hour = 1").replace("2026-10", "soon"),
            "[rents.l4]: as_of is 'soon'; it is the",
        ),
        (
            ROW.format("rents.l4", "per_hour = 1").replace("2026-10", "2026-13"),
            "[rents.l4]: as_of is '2026-13'",
        ),
        ("hosted = 3\n", "[hosted] is no table"),
        ("[rents]\nl4 = 3\n", "[rents.l4] is no table"),
        ("[rent]\n", "it has 'rent', and known are [hosted.NAME] and [rents.NAME]."),
        ("=", "no file of prices"),
    ],
)
def test_a_file_that_is_none_of_prices(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(InvalidParameter, match="no file of prices") as raised:
        Prices(file)
    assert said in str(raised.value)
    with pytest.raises(InvalidParameter, match="cannot be read"):
        Prices(tmp_path / "nothing.toml")


def test_tiers_are_in_order(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    tier = "{ above_tokens = %d, input = 1, output = 1 }"
    file.write_text(
        f"[hosted.x]\ninput = 1\noutput = 1\nsource = 's'\nas_of = '2026-10-03'\ntiers = [{tier % 20}, {tier % 10}]\n"
    )
    with pytest.raises(InvalidParameter, match="the lowest first"):
        Prices(file)
