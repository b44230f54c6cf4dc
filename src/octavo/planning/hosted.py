"""What one turn costs at a seller of answers. Knows prices and tokens, no traffic.

Money is in the seller's currency. Numbers are floats, and rounded only where they are shown.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.errors import InvalidParameter
from octavo.planning.amounts import check_amount
from octavo.planning.prices import HostedModel
from octavo.planning.sheet import Sheet, figure

__all__ = ["Turn", "cost_per_turn"]

_MOST_TOKENS = 1e9


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A request on average. Tokens."""

    input: float
    """Of the whole prompt, cached ones too."""
    output: float
    cached: float = 0.0
    """Of the prompt: what the seller's cache has."""
    cache_write: float = 0.0
    """Of the prompt: what it takes in."""

    def __post_init__(self) -> None:
        for name in ("input", "output", "cached", "cache_write"):
            check_amount(name, getattr(self, name), "tokens", most=_MOST_TOKENS)
        if self.input + self.output <= 0.0:
            raise InvalidParameter("A turn has no tokens; give --input and --output.", "input")
        if self.cached + self.cache_write > self.input:
            raise InvalidParameter(
                f"cached is {self.cached:g} and cache_write {self.cache_write:g} tokens, more than the prompt's "
                f"{self.input:g} together.",
                "cached",
            )

    @property
    def plain(self) -> float:
        """Of the prompt: neither cached nor taken in."""
        return self.input - self.cached - self.cache_write


def cost_per_turn(name: str, price: HostedModel, turn: Turn, sheet: Sheet, *, batch: bool = False) -> float:
    """Money for one turn; `batch`: the answer may wait.

    Raises InvalidParameter where a price that it needs is not known: it is never taken for 0.
    """
    tier = price.tier(turn.input)
    cached, written = tier.cached, tier.cache_write
    if turn.cached and cached is None:
        raise _unknown(name, "cached input", "cached")
    if batch and price.batch_discount is None:
        raise _unknown(name, "the batch discount", "batch")
    parts = [
        (turn.plain, tier.input),
        (turn.cached, cached or 0.0),
        (turn.cache_write, tier.input if written is None else written),
        (turn.output, tier.output),
    ]
    factor = 1.0 - (price.batch_discount or 0.0) if batch else 1.0
    text = " + ".join(f"{figure(tokens)} × {figure(each)}" for tokens, each in parts if tokens)
    off = f" × {figure(factor)}" if factor != 1.0 else ""
    if tier is not price:
        sheet.note(
            f"{name}: prompts of more than {figure(price_floor(price, turn))} tokens have prices of their own."
        )
    value = sum(tokens * each for tokens, each in parts) * factor / 1e6
    return sheet.line(f"{name}, a turn", f"({text}){off} ÷ 1000000", value, price.currency)


def price_floor(price: HostedModel, turn: Turn) -> float:
    """Above how many tokens the prices of this turn begin; 0 for the model's own."""
    return max((tier.above_tokens for tier in price.tiers if turn.input > tier.above_tokens), default=0)


def _unknown(name: str, what: str, key: str) -> InvalidParameter:
    return InvalidParameter(
        f"The price of {what} at {name} is not known, and what is not known is not free; give it, as in "
        f"{name}:in=…,out=…,{key}=…, or in a file with --prices.",
        "hosted",
    )
