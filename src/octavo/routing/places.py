"""Tiers while the gateway runs: whether each is well, how much it has to do, and who waits for it. Knows no request."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from octavo.routing.breaker import Breaker
from octavo.routing.tiers import Tier
from octavo.routing.upstream import Upstream

__all__ = ["Place", "Queue"]


class Place:
    """One tier, with what is known of it while the gateway runs."""

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self.upstream = Upstream(tier)
        self.breaker = Breaker(tier.failures, tier.cooldown_s)
        self.running = 0
        """Requests that it has now."""
        self.waiting = 0
        """Requests that wait for room here, or elsewhere."""

    @property
    def full(self) -> bool:
        """It has as many requests as it may."""
        return self.tier.most_running is not None and self.running >= self.tier.most_running


class Queue:
    """Requests whose tiers are all full: first come, first served, each by the first tier that has room."""

    def __init__(self) -> None:
        self._tickets: list[_Ticket] = []

    async def free(self, places: Sequence[Place]) -> list[Place]:
        """Of `places` those with room for one more, at least one. Who gets them takes one before it waits again."""
        if found := [place for place in places if not place.full and not place.waiting]:
            return found
        ticket = _Ticket(places)
        self._tickets.append(ticket)
        for place in places:
            place.waiting += 1
        found = []
        try:
            while not (found := [place for place in places if not place.full]):
                ticket.called = asyncio.get_running_loop().create_future()
                await ticket.called
            return found
        finally:
            self._tickets.remove(ticket)
            for place in places:
                place.waiting -= 1
            if not found:  # it was given up: whoever is next takes what it was called for
                for place in places:
                    self.call_next(place)

    def call_next(self, place: Place) -> None:
        """There may be room at this tier."""
        if place.full or not place.waiting:
            return
        for ticket in self._tickets:
            if place in ticket.places and ticket.called is not None and not ticket.called.done():
                ticket.called.set_result(None)
                return


class _Ticket:
    """A request that waits."""

    def __init__(self, places: Sequence[Place]) -> None:
        self.places = places
        self.called: asyncio.Future[None] | None = None
