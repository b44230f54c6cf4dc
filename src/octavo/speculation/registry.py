"""The drafters there are, by the names that options use. Knows nothing of them but how to make one."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from octavo.config import SpeculationName
from octavo.speculation.drafter import Drafter, Longest
from octavo.speculation.ngram import NgramDrafter
from octavo.speculation.suffix import SuffixDrafter

__all__ = ["DRAFTERS"]

DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "ngram": NgramDrafter,
    "suffix": SuffixDrafter,
    "auto": lambda: Longest(NgramDrafter(), SuffixDrafter()),
}
"""All but `off`."""

assert {*DRAFTERS, "off"} == set(get_args(SpeculationName))
