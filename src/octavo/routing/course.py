"""The way of one request through the tiers: what was decided, each attempt, what it cost. Knows no network.

Whoever wants to know of it is an Observer: metrics now; what stores decisions, or counts budgets, can be one too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

from octavo.routing.asked import Asked
from octavo.routing.bill import Usage
from octavo.routing.decider import Verdict

__all__ = ["Attempt", "Course", "Observer", "Outcome", "shown_cost"]

Outcome = Literal[
    "answered", "refused", "connect", "cut", "timeout", "overloaded", "server", "key", "model", "context",
    "broken", "left",
]  # fmt: skip
"""How an attempt ended. answered: whole. refused: the request was found wrong, and the client is told so. connect: no
connection. cut: it ended before the answer began. timeout. overloaded: the tier asks to come later. server: another
error of the tier. key: the tier does not take our key. model: it does not have our model. context: the request is too
long for it. broken: the answer had begun, and did not end. left: the client went away."""


@dataclass(slots=True)
class Attempt:
    """One request to one tier. Times are seconds of the gateway's clock."""

    tier: str
    began_s: float
    first_s: float | None = None
    """When its answer began."""
    ended_s: float | None = None
    outcome: Outcome | None = None
    """None: it goes on."""
    message: str = ""
    """What went wrong, in words."""
    usage: Usage | None = None
    """None: no answer had begun."""
    cost: float | None = 0.0
    """None: the tier's prices are not known."""


@dataclass(slots=True)
class Course:
    """One request's."""

    asked: Asked
    verdict: Verdict
    order: tuple[str, ...]
    """Tiers that may answer, the chosen one first."""
    attempts: list[Attempt] = field(default_factory=list)
    ended_s: float | None = None
    able: tuple[str, ...] = ()
    """All tiers that could take it."""
    response_id: str | None = None
    """What the tier called its answer; None until that has begun."""
    heard: bytearray | None = None
    """The answer, where somebody wants to look at it; None: nobody does."""

    @property
    def tier(self) -> str | None:
        """Who answered, or answers."""
        last = self.attempts[-1] if self.attempts else None
        return last.tier if last is not None and last.first_s is not None else None

    @property
    def cost(self) -> float | None:
        """Of all attempts together; None where one of them has no known price."""
        costs = [attempt.cost for attempt in self.attempts]
        return None if None in costs else sum(cost for cost in costs if cost is not None)

    @property
    def reason(self) -> str:
        """Why the tier that answered did, in a line."""
        failed: dict[str, str] = {}
        for attempt in self.attempts[: None if self.tier is None else -1]:
            failed[attempt.tier] = attempt.outcome or ""
        told = [f"{name} {outcome}" for name, outcome in failed.items() if name != self.tier]
        if self.tier != self.verdict.tier and self.verdict.tier not in failed:
            told.insert(0, f"{self.verdict.tier} not free or not well")
        return "; ".join([self.verdict.reason, *told])

    def headers(self) -> dict[str, str]:
        """What the client is told; of a stream that has begun, without the cost."""
        found = {"x-octavo-tier": self.tier or "none", "x-octavo-reason": _plain(self.reason)}
        if self.verdict.score is not None:
            found["x-octavo-score"] = f"{self.verdict.score:.4g}"
        if self.verdict.policy is not None:
            found["x-octavo-policy"] = self.verdict.policy
        found["x-octavo-attempts"] = ", ".join(
            f"{one.tier}={one.outcome or 'answering'}" for one in self.attempts
        )
        if self.attempts and self.attempts[-1].outcome is not None:
            found["x-octavo-cost"] = shown_cost(self.cost)
        return found


class Observer(Protocol):
    """Who is told. Called on the event loop, in microseconds, and raises nothing."""

    def on_attempt(self, attempt: Attempt) -> None:
        """An attempt has ended."""

    def on_end(self, course: Course) -> None:
        """The request has ended, however it did."""


def shown_cost(cost: float | None) -> str:
    """Without an exponent, which not everybody can read. Exact where prices per million have at most six decimals."""
    if cost is None:
        return "unknown"
    return f"{cost:.12f}".rstrip("0").rstrip(".")


def _plain(text: str) -> str:
    """As a header may carry it."""
    return "".join(letter if " " <= letter <= "~" else "?" for letter in text)[:400]
