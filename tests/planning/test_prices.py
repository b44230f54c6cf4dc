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


@pytest.mark.parametrize(
    "text",
    [
        "[hosted.x]\ninput = 1\n",
        "[hosted.x]\ninput = -1\noutput = 1\nsource = 's'\nas_of = 'd'\n",
        "[rent]\n",
        "=",
    ],
)
def test_a_file_that_is_none_of_prices(tmp_path: Path, text: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(InvalidParameter, match="no file of prices"):
        Prices(file)
    with pytest.raises(InvalidParameter, match="cannot be read"):
        Prices(tmp_path / "nothing.toml")


def test_tiers_are_in_order(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    tier = "{ above_tokens = %d, input = 1, output = 1 }"
    file.write_text(
        f"[hosted.x]\ninput = 1\noutput = 1\nsource = 's'\nas_of = 'd'\ntiers = [{tier % 20}, {tier % 10}]\n"
    )
    with pytest.raises(InvalidParameter, match="the lowest first"):
        Prices(file)
