"""The bounds of numbers in requests, for the check and for the OpenAPI document. Knows no request.

Where OpenAI documents a bound, it is the bound (temperature ends at 2); vLLM's fields have vLLM's. Wider on purpose:
more stop strings and log-probabilities than either allows.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Meta

from octavo.sampling.ranges import RANGES, Range

__all__ = ["BOUNDS", "TOKEN", "TOKEN_IDS", "one_of", "within"]

_MOST_TOKENS = 2**31 - 1

BOUNDS: Mapping[str, Range] = {
    **RANGES,
    "temperature": Range(0.0, 2.0),
    "logit_bias": Range(-100.0, 100.0),
    "max_completion_tokens": RANGES["max_tokens"],
    "timeout": Range(0.0, 86_400.0, above=True),
    "priority": Range(-1_000_000, 1_000_000, whole=True),
    "top_logprobs": RANGES["logprobs"],
    "truncate_prompt_tokens": Range(1, _MOST_TOKENS, whole=True),
}
"""By the field's name."""

TOKEN = Range(0, _MOST_TOKENS, whole=True)
"""A token's id, whatever the model."""
TOKEN_IDS = Meta(extra_json_schema={"items": {"type": "integer", **TOKEN.schema()}})


def within(name: str) -> Meta:
    """What a schema says of the field."""
    return Meta(extra_json_schema=BOUNDS[name].schema())


def one_of(*values: str) -> Meta:
    """What a schema says of a text that is one of a few; the check is the field's own, which knows a better reason."""
    return Meta(extra_json_schema={"enum": list(values)})
