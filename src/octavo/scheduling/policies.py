"""In which order the running sequences are offered tokens, and how many. Data plus a few lines each.

Knows sequences' gaps, not memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from octavo.scheduling.sequence import Sequence

__all__ = ["POLICIES", "Policy", "StallFree"]


class Policy(Protocol):
    """How a step's budget is offered."""

    name: str

    def offers(self, running: Iterable[Sequence]) -> Iterator[Sequence]:
        """The running sequences (given in the one order), in the order in which they are offered the budget."""


class StallFree:
    """Decodes first, then prompt chunks into what is left (Sarathi-Serve, Agrawal et al. 2024, arXiv:2403.02310)."""

    name = "stall-free"

    def offers(self, running: Iterable[Sequence]) -> Iterator[Sequence]:
        chunks = []
        for sequence in running:
            if sequence.gap == 1:
                yield sequence
            else:
                chunks.append(sequence)
        yield from chunks


POLICIES: dict[str, Policy] = {policy.name: policy for policy in (StallFree(),)}
"""By name."""
