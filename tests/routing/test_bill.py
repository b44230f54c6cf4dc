"""What tokens cost."""

from __future__ import annotations

from decimal import Decimal
from random import Random
from typing import Any

import pytest

from octavo.routing.bill import Price, Usage, usage_of
from octavo.routing.course import shown_cost


def test_cached_input_has_its_own_price_or_that_of_other_input() -> None:
    usage = Usage(input=1000, cached=400, output=100)
    assert Price(input=1, output=10, cached=0.5).cost(usage) == pytest.approx((600 + 200 + 1000) / 1e6)
    assert Price(input=1, output=10).cost(usage) == pytest.approx((1000 + 1000) / 1e6)


def test_a_long_prompt_has_other_prices() -> None:
    price = Price(
        input=1, output=1, longer=((100, Price(input=2, output=3)), (200, Price(input=5, output=5)))
    )
    assert price.cost(Usage(100, 0, 0)) == pytest.approx(100e-6)
    assert price.cost(Usage(101, 0, 1)) == pytest.approx(205e-6)
    assert price.cost(Usage(201, 0, 0)) == pytest.approx(1005e-6)


@pytest.mark.parametrize(
    ("told", "usage"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 2}, Usage(5, 0, 2)),
        (
            {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}},
            Usage(5, 4, 2),
        ),
        ({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 9}}, Usage(5, 5)),
        ({"prompt_tokens": 5, "prompt_tokens_details": None}, Usage(5)),
        ({"prompt_tokens": "5"}, None),
        ({}, None),
        (None, None),
    ],
)
def test_usage_in_openai_s_words(told: Any, usage: Usage | None) -> None:
    assert usage_of({"usage": told}) == usage
    assert usage_of([told]) is None


def test_what_is_shown_is_what_whole_numbers_give_to_the_last_digit() -> None:
    random = Random(0)
    shown = exact = Decimal(0)
    for _ in range(2000):
        prices = [Decimal(random.randrange(10**8)) / 10 ** random.randrange(2, 7) for _ in range(3)]
        usage = Usage(given := random.randrange(5000), random.randrange(given + 1), random.randrange(2000))
        price = Price(input=float(prices[0]), cached=float(prices[1]), output=float(prices[2]))
        counts = (usage.input - usage.cached, usage.cached, usage.output)
        cost = sum((count * one for count, one in zip(counts, prices, strict=True)), Decimal(0)) / 10**6
        if cost < 100:
            shown, exact = shown + Decimal(shown_cost(price.cost(usage))), exact + cost
    assert shown == exact > 0
