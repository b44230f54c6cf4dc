"""Asks a tier something of the gateway's own, beside the clients' requests. Knows one question and its bill.

What is asked so is counted among the tier's attempts, with its tokens and its cost, and among nobody's requests. A tier
that is full or not well is not asked: clients go first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.errors import TierFailed
from octavo.routing.asked import CHAT, Asked
from octavo.routing.attempts import NotBegun, ask
from octavo.routing.course import Attempt
from octavo.routing.heard import text_of

if TYPE_CHECKING:
    from octavo.routing.gateway import Gateway

__all__ = ["Said", "ask_aside"]


@dataclass(frozen=True, slots=True)
class Said:
    """An answer."""

    text: str
    cost: float | None
    """None: the tier's prices are not known."""


async def ask_aside(gateway: Gateway, tier: str, body: Mapping[str, Any]) -> Said:
    """The tier's answer to a conversation, in one piece. Raises TierFailed."""
    place = gateway.places[tier]
    if place.full or place.waiting or place.breaker.state(gateway.now_s()) != "closed":
        raise TierFailed(f"the tier {tier} has no room or is not well")
    kept = {name: value for name, value in body.items() if name not in ("stream", "stream_options", "n")}
    asked = Asked(CHAT, kept, {}, None, gateway.now_s())
    attempt = Attempt(tier, gateway.now_s())
    place.running += 1
    try:
        begun = await ask(place, asked, place.tier.answer_s)
    except NotBegun as failure:
        gateway.end_attempt(place, attempt, failure.outcome, message=str(failure), blame=False)
        raise TierFailed(f"the tier {tier} did not answer: {failure}") from None
    except BaseException:
        gateway.end_attempt(place, attempt, "left", None)
        raise
    attempt.first_s = gateway.now_s()
    good = begun.status < 400
    gateway.end_attempt(place, attempt, "answered" if good else "refused", begun.usage)
    if not good:
        raise TierFailed(f"the tier {tier} refused what it was asked ({begun.status})")
    return Said(text_of(begun.data), attempt.cost)
