"""Who chooses a tier for what rules leave open: a decider says a tier, a score and why. Knows prompts, no HTTP.

The one that learns is in policy_decider: this module is imported by every gateway, and needs no NumPy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["Decider", "DefaultTier", "Verdict"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a decider says."""

    tier: str
    """A tier's name."""
    score: float | None
    """How hard the prompt seems, on the decider's own scale; None: it was not looked at."""
    reason: str
    """In a few words, for a header and a log."""
    abstained: bool = False
    """The score decided nothing: the prompt is unlike what was learnt from."""
    policy: str | None = None
    """Which version of a policy decided; None where there are no versions."""
    decided: str | None = None
    """The tier that was decided, where another one was taken to see what it brings."""
    propensity: float = 1.0
    """With which probability this tier was taken."""
    elsewhere: float = 0.0
    """With which each other one would have been."""


class Decider(Protocol):
    """Asked for each request that no rule has settled."""

    async def decide(self, prompt: str) -> Verdict:
        """`prompt`: the last that the user said; "" where that is not text. Other requests' streams wait while it
        computes, so what takes longer than a millisecond or two belongs in a thread. Raises nothing: who is not sure
        says so, and names the tier for that case."""


@dataclass(frozen=True, slots=True)
class DefaultTier:
    """Always the same."""

    tier: str

    async def decide(self, prompt: str) -> Verdict:
        """The default tier, whatever is asked."""
        return Verdict(self.tier, None, "default tier")
