"""What an attempt at a tier cost: its usage at the tier's prices. Knows sums, no request and no network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = ["Price", "Usage", "usage_of"]

_MILLION = 1e6


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one attempt."""

    input: int = 0
    """Of the prompt, those from a cache among them."""
    cached: int = 0
    output: int = 0
    estimated: bool = False
    """The tier did not say it: the length of the text was measured instead."""


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """Per million tokens."""

    input: float
    output: float
    cached: float | None = None
    """Of input that was in the tier's cache; None: as other input, so that a bill is never too low."""
    longer: tuple[tuple[int, Price], ...] = ()
    """Prices of requests with more prompt tokens than that, the lowest first."""

    def cost(self, usage: Usage) -> float:
        """Of one attempt, in the prices' currency."""
        price = self
        for above, other in self.longer:
            if usage.input > above:
                price = other
        cached = price.input if price.cached is None else price.cached
        fresh = max(usage.input - usage.cached, 0)
        return (fresh * price.input + usage.cached * cached + usage.output * price.output) / _MILLION


def usage_of(answer: Any) -> Usage | None:
    """From an answer's or a chunk's JSON, in OpenAI's words; None where it has none."""
    told = answer.get("usage") if isinstance(answer, Mapping) else None
    if not isinstance(told, Mapping):
        return None
    details = told.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    counts = told.get("prompt_tokens"), cached, told.get("completion_tokens")
    if not isinstance(counts[0], int):
        return None
    given, cached, output = (value if isinstance(value, int) and value > 0 else 0 for value in counts)
    return Usage(given, min(cached, given), output)  # what was not sent was not cached
