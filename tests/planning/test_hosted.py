"""What one turn costs: each kind of token once, tiers by the whole prompt, and nothing unknown for free."""

from __future__ import annotations

import pytest

from octavo.errors import InvalidParameter
from octavo.planning.hosted import Turn, cost_per_turn
from octavo.planning.prices import HostedModel, Tier
from octavo.planning.sheet import Sheet

MODEL = HostedModel(
    input=2.0,
    output=10.0,
    cached=0.2,
    cache_write=2.5,
    batch_discount=0.5,
    tiers=(Tier(above_tokens=1000, input=4.0, output=15.0, cached=0.4),),
    source="a test",
    as_of="2026-01",
)


def cost(turn: Turn, model: HostedModel = MODEL, *, batch: bool = False) -> float:
    return cost_per_turn("m", model, turn, Sheet(), batch=batch)


def test_each_kind_of_token_has_its_price() -> None:
    turn = Turn(input=1000, cached=600, cache_write=300, output=50)
    assert cost(turn) == pytest.approx((100 * 2.0 + 600 * 0.2 + 300 * 2.5 + 50 * 10.0) / 1e6)
    assert cost(turn, batch=True) == pytest.approx(cost(turn) / 2)


def test_a_long_prompt_has_the_tiers_prices_for_all_of_its_tokens() -> None:
    sheet = Sheet()
    assert cost_per_turn("m", MODEL, Turn(input=1001, output=10), sheet) == pytest.approx(
        (1001 * 4 + 150) / 1e6
    )
    assert sheet.sections[0].notes == ["m: prompts of more than 1000 tokens have prices of their own."]
    assert cost(Turn(input=1000, output=10)) == pytest.approx((1000 * 2 + 100) / 1e6)


def test_what_a_tier_does_not_say_of_cache_writes_is_plain_input() -> None:
    assert cost(Turn(input=2000, cache_write=2000, output=0)) == pytest.approx(2000 * 4 / 1e6)


def test_an_unknown_price_is_an_error_and_not_zero() -> None:
    bare = HostedModel(input=1, output=2, source="a test", as_of="2026-01")
    with pytest.raises(InvalidParameter, match="cached input at m is not known"):
        cost(Turn(input=100, cached=50, output=1), bare)
    with pytest.raises(InvalidParameter, match="batch discount at m is not known"):
        cost(Turn(input=100, output=1), bare, batch=True)
    assert cost(Turn(input=100, output=1), bare) == pytest.approx(102 / 1e6)


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ({"input": -1.0, "output": 1.0}, "input is -1"),
        ({"input": 0.0, "output": 0.0}, "no tokens"),
        ({"input": 10.0, "output": 1.0, "cached": 11.0}, "more than the prompt's 10"),
        ({"input": float("nan"), "output": 1.0}, "input is nan"),
    ],
)
def test_turns_that_cannot_be(tokens: dict[str, float], said: str) -> None:
    with pytest.raises(InvalidParameter, match=said):
        Turn(**tokens)
