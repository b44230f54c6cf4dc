"""What tokens cost."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.routing.bill import Price, Usage, usage_of


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
        ({"prompt_tokens": 5, "prompt_tokens_details": None}, Usage(5)),
        ({"prompt_tokens": "5"}, None),
        ({}, None),
        (None, None),
    ],
)
def test_usage_in_openai_s_words(told: Any, usage: Usage | None) -> None:
    assert usage_of({"usage": told}) == usage
    assert usage_of([told]) is None
