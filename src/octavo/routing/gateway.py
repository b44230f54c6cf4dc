"""The gateway's core: decides, asks one tier after another, passes the answer on. Knows requests and tiers, no HTTP
server.

All of it runs on one event loop. Nothing is sent to the client before an attempt has begun to answer, so a tier that
dies costs time and no request; after that, what breaks ends with an error that the client sees.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from octavo.bench.connection import Failure
from octavo.errors import DeadlineExceeded, InvalidParameter, OctavoError, Overloaded, TierFailed
from octavo.routing.answering import Answering
from octavo.routing.asked import EMBEDDINGS, Asked
from octavo.routing.attempts import NotBegun, ask
from octavo.routing.bill import Usage
from octavo.routing.course import Attempt, Course, Observer, Outcome
from octavo.routing.decider import Decider, DefaultTier, Verdict
from octavo.routing.places import Place, Queue
from octavo.routing.rules import Choice, choose
from octavo.routing.tiers import Tier, Tiers

if TYPE_CHECKING:
    from octavo.routing.feedback import FeedbackRun

__all__ = ["FALLBACK_HEADER", "Gateway"]

_logger = logging.getLogger(__name__)

FALLBACK_HEADER = "x-octavo-fallback"
"""A request's header: no keeps it on the tier that was chosen."""
_FIRST_PAUSE_S = 0.1
_AGAIN: frozenset[Outcome] = frozenset({"cut", "server"})
"""Failures after which the same tier is asked at once again."""


class Gateway:
    """Tiers that answer as one."""

    def __init__(
        self,
        tiers: Tiers,
        decider: Decider | None = None,
        *,
        observers: Sequence[Observer] = (),
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`decider`: None always takes the default tier. `now_s`: the clock of all times here."""
        self.tiers = tiers
        self.decider = decider or DefaultTier(tiers.general.default)
        self.places = {tier.name: Place(tier) for tier in tiers.all}
        self.now_s = now_s
        self._observers = tuple(observers)
        self._queue = Queue()
        self.feedback: FeedbackRun | None = None
        """What learns from answers, where anything does."""
        self.running = 0
        """Requests that have not ended."""

    async def answer(self, course: Course) -> Answering:
        """An answer that has begun, to what was decided. Raises TierFailed, Overloaded or DeadlineExceeded where nobody
        answered, and InvalidParameter for a request that is too long for all."""
        self.running += 1
        try:
            return await self._asked(course)
        except BaseException:
            if course.attempts and course.attempts[-1].outcome is None:
                last = course.attempts[-1]
                self.end_attempt(self.places[last.tier], last, "left", None)
            self.end(course)
            raise

    def end(self, course: Course) -> None:
        """It has ended."""
        course.ended_s = self.now_s()
        self.running -= 1
        for observer in self._observers:
            observer.on_end(course)
        if self.feedback is not None:
            self.feedback.on_end(course)

    def end_attempt(
        self,
        place: Place,
        attempt: Attempt,
        outcome: Outcome,
        usage: Usage | None = None,
        message: str = "",
        *,
        blame: bool = True,
        wait_s: float | None = None,
    ) -> None:
        """An attempt has ended: its cost, what it says of the tier, and a place for another request."""
        attempt.ended_s, attempt.outcome, attempt.message = self.now_s(), outcome, message
        attempt.usage = usage
        if usage is not None:
            attempt.cost = None if place.tier.price is None else place.tier.price.cost(usage)
        breaker, now_s = place.breaker, attempt.ended_s
        match outcome:
            case "answered" | "refused" | "context":
                breaker.succeeded()
            case "left":
                breaker.left()
            case "overloaded" if wait_s is not None:
                breaker.rest(now_s, wait_s, message)
            case _ if not blame:
                breaker.left()
            case _:
                if breaker.failed(now_s, message):
                    _logger.warning("the tier %s is left alone for a while: %s", place.tier.name, message)
        place.running -= 1
        self._queue.call_next(place)
        for observer in self._observers:
            observer.on_attempt(attempt)

    async def check(self, name: str) -> str | None:
        """Ask a tier whether it is there: what is wrong, as the end of a sentence, or None."""
        place = self.places[name]
        try:
            answer = await place.upstream.check()
        except Failure as failure:
            return str(failure)
        if answer.status in (401, 403):
            return f"it answers {answer.status}: its key is missing, wrong or expired"
        if answer.status >= 500:
            return f"it answers {answer.status}"
        place.breaker.hear(self.now_s())
        return None

    async def watch(self) -> None:
        """For ever: ask tiers that are not well whether they are there again, so that no request has to find out."""
        every_s = self.tiers.general.check_s
        while every_s > 0:
            await asyncio.sleep(every_s)
            for name, place in self.places.items():
                if place.breaker.state(self.now_s()) == "open":
                    await self.check(name)

    async def close(self) -> None:
        """End all connections."""
        for place in self.places.values():
            await place.upstream.close()

    # Deciding.

    async def decide(self, asked: Asked) -> Course:
        """Who shall answer, and who stands in. Raises ClientError for a request that no tier can take."""
        choice = choose(asked, self.tiers)
        if asked.path == EMBEDDINGS:
            return self._embedding(asked, choice)
        if choice.tier is not None:
            verdict, chosen = Verdict(choice.tier.name, None, choice.reason), choice.tier
        else:
            verdict = await self.decider.decide(asked.prompt)
            chosen = self._able(verdict.tier, choice)
            if chosen.name != verdict.tier:
                reason = f"{verdict.reason}; {verdict.tier} is not able"
                verdict = replace(verdict, tier=chosen.name, reason=reason)
            if self.feedback is not None:
                verdict = self.feedback.explore(verdict, choice.able, asked)
                chosen = self.tiers[verdict.tier]
        order = tuple(tier.name for tier in self.tiers.after(chosen.name) if tier in choice.able)
        stays = asked.headers.get(FALLBACK_HEADER, "").strip().lower() in ("no", "false", "0", "off")
        able = tuple(tier.name for tier in choice.able)
        course = Course(asked, verdict, order[:1] if stays else order, able=able)
        if self.feedback is not None:
            self.feedback.begin(course)
        return course

    def _embedding(self, asked: Asked, choice: Choice) -> Course:
        """Vectors of two models cannot be compared, so no tier stands in for another."""
        named = choice.reason in ("header", "model") and choice.tier is not None
        tier = choice.tier if named and choice.tier is not None else self.tiers[self.tiers.general.embeddings]
        if tier not in choice.able:
            raise InvalidParameter(f"The tier {tier.name}, which makes embeddings, cannot take this request.")
        verdict = Verdict(tier.name, None, choice.reason if named else "embeddings")
        return Course(asked, verdict, (tier.name,))

    def _able(self, name: str, choice: Choice) -> Tier:
        """The tier, or where it cannot take the request the next dearer one that can; else the dearest that can."""
        names = self.tiers.names
        place = names.index(name) if name in names else 0
        return next((tier for tier in choice.able if names.index(tier.name) >= place), choice.able[-1])

    # Asking.

    async def _asked(self, course: Course) -> Answering:
        deadline_s = course.asked.arrived_s + self.tiers.general.deadline_s
        places = [self.places[name] for name in course.order]
        failures: dict[str, NotBegun] = {}
        for turn in range(self.tiers.general.rounds):
            if turn:
                await self._pause(turn, deadline_s)
            free = await self._room(places, course, deadline_s)
            well = [place for place in free if place.breaker.state(self.now_s()) != "open"]
            # Where none is well, the one whose time comes first is tried all the same.
            for place in well or [min(free, key=lambda one: one.breaker.until_s)]:
                if place.full or not (place.breaker.enter(self.now_s()) or not well):
                    continue  # others were quicker, while another tier was tried
                tried = await self._tried(place, course, deadline_s)
                if isinstance(tried, Answering):
                    return tried
                failures[place.tier.name] = tried
            places = [one for one in places if _may_change(failures.get(one.tier.name))]
            if not places:
                break
        raise _unanswered(failures)

    async def _tried(self, place: Place, course: Course, deadline_s: float) -> Answering | NotBegun:
        """One tier, and again where that is worth it. Raises DeadlineExceeded."""
        for again in range(place.tier.retries + 1):
            if again:
                await self._pause(again, deadline_s)
            left_s = deadline_s - self.now_s()
            if left_s <= 0:
                raise self._late(course)
            attempt = Attempt(place.tier.name, self.now_s())
            course.attempts.append(attempt)
            place.running += 1
            try:
                begun = await ask(place, course.asked, left_s)
            except NotBegun as failure:
                self.end_attempt(place, attempt, failure.outcome, message=str(failure), wait_s=failure.wait_s)
                if failure.outcome == "timeout" and self.now_s() >= deadline_s:
                    raise self._late(course) from None
                well = place.breaker.state(self.now_s()) == "closed"
                if again == place.tier.retries or failure.outcome not in _AGAIN or place.full or not well:
                    return failure
                continue
            attempt.first_s = self.now_s()
            place.breaker.began()
            return Answering(self, course, begun, place, deadline_s)
        raise AssertionError

    async def _pause(self, turn: int, deadline_s: float) -> None:
        """Before asking again: longer each time, and never the same for two clients."""
        pause_s = _FIRST_PAUSE_S * 2 ** (turn - 1) * random.uniform(0.5, 1.0)
        await asyncio.sleep(max(min(pause_s, deadline_s - self.now_s()), 0.0))

    async def _room(self, places: Sequence[Place], course: Course, deadline_s: float) -> list[Place]:
        """Raises DeadlineExceeded."""
        try:
            async with asyncio.timeout(max(deadline_s - self.now_s(), 0.0)):
                return await self._queue.free(places)
        except TimeoutError:
            raise self._late(course) from None

    def _late(self, course: Course) -> DeadlineExceeded:
        tried = ", ".join(f"{one.tier} ({one.message or one.outcome})" for one in course.attempts)
        told = f"; tried: {tried}" if tried else "; all tiers were full"
        return DeadlineExceeded(f"No tier answered within {self.tiers.general.deadline_s:g} s{told}.")


def _may_change(failure: NotBegun | None) -> bool:
    """Whether another try could go better."""
    return failure is None or failure.outcome not in ("context", "key", "model")


def _unanswered(failures: dict[str, NotBegun]) -> OctavoError:
    """What the client is told when nobody could answer."""
    if failures and all(one.outcome == "context" for one in failures.values()):
        return InvalidParameter(f"The request is too long: {_listed(failures)}.", "messages")
    if all(one.outcome == "overloaded" for one in failures.values()):
        waits = [one.wait_s for one in failures.values() if one.wait_s is not None]
        return Overloaded(f"All tiers are busy: {_listed(failures)}.", min(waits, default=1.0))
    return TierFailed(f"No tier answered: {_listed(failures)}.")


def _listed(failures: dict[str, NotBegun]) -> str:
    return "; ".join(f"{name}: {failure}" for name, failure in failures.items())
