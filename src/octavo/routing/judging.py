"""Compares a share of the answers with another tier's, behind the clients' backs. Knows when and for how much.

A request is never kept waiting: its answer has gone out whole before anything begins, one comparison runs at a time,
few wait for their turn, and tiers without room are not asked.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from octavo.errors import OctavoError, TierFailed
from octavo.routing.aside import ask_aside
from octavo.routing.asked import CHAT
from octavo.routing.bill import Usage
from octavo.routing.checks import judge_pairs
from octavo.routing.heard import text_of
from octavo.routing.judge import Judge, Trial, tried

if TYPE_CHECKING:
    from octavo.routing.course import Course
    from octavo.routing.feeding import Feeding, Purse
    from octavo.routing.gateway import Gateway

__all__ = ["Judging", "judge_of", "tried_tier"]

_logger = logging.getLogger(__name__)

MOST_WAITING = 16
MOST_HEARD_BYTES = 64 << 10
"""Of an answer that shall be compared; longer ones are left out."""
REPLY_TOKENS = 8
_TRIED_AT_ONCE = 4
_ANSWER_TOKENS = 1024
"""Where the client names no limit; for the estimate of a second answer's cost."""

OnJudged = Callable[["Course", str, "bool | None"], None]
"""The request, the other tier, and whether the answer was better than that one's; None: no difference."""


def judge_of(gateway: Gateway, tier: str, bill: list[float] | None = None) -> Judge:
    """A tier as a judge. `bill`: gets the cost of each question."""

    async def asking(prompt: str) -> str:
        body = {
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": REPLY_TOKENS,
        }
        said = await ask_aside(gateway, tier, body)
        if bill is not None:
            bill.append(said.cost or 0.0)
        return said.text

    return Judge(asking)


async def tried_tier(gateway: Gateway, tier: str, bill: list[float] | None = None) -> Trial:
    """Its trial. `bill`: gets the cost of each question. Raises TierFailed where it does not answer."""
    most = gateway.tiers[tier].most_running
    at_once = _TRIED_AT_ONCE if most is None else min(most, _TRIED_AT_ONCE)
    try:
        return await tried(judge_of(gateway, tier, bill), judge_pairs(), at_once=at_once)
    except* TierFailed as group:
        raise TierFailed(str(group.exceptions[0])) from None


class Judging:
    """Draws requests, and compares their answers."""

    def __init__(
        self, gateway: Gateway, feeding: Feeding, purse: Purse, told: OnJudged, *, seed: int | None = None
    ) -> None:
        """`seed`: of what is drawn; None takes another one each time."""
        assert feeding.judge is not None
        self._gateway, self._feeding, self._purse, self._told = gateway, feeding, purse, told
        self._random = random.Random(seed)
        self._waiting: asyncio.Queue[Course] = asyncio.Queue(MOST_WAITING)
        self.left_out = {"money": 0, "busy": 0, "failed": 0}
        """Requests that were drawn and not compared."""

    def draw(self, course: Course) -> None:
        """Perhaps this one: then its answer is kept until it was compared."""
        asked = course.asked
        if asked.path != CHAT or not asked.prompt or asked.tools or asked.images:
            return
        if self._random.random() < self._feeding.judge_share:
            course.heard = bytearray()

    def on_end(self, course: Course) -> None:
        """It has ended."""
        if course.heard is None:
            return
        done = course.attempts and course.attempts[-1].outcome == "answered"
        if not done or course.tier not in self._feeding.compared or len(course.heard) > MOST_HEARD_BYTES:
            return
        try:
            self._waiting.put_nowait(course)
        except asyncio.QueueFull:
            self.left_out["busy"] += 1

    async def run(self) -> None:
        """For ever."""
        while True:
            course = await self._waiting.get()
            try:
                await self._compare(course)
            except TierFailed as error:
                self.left_out["failed"] += 1
                _logger.info("an answer was not compared: %s", error)
            except OctavoError as error:
                self.left_out["failed"] += 1
                _logger.warning("an answer was not compared: %s", error)

    def _other(self, course: Course) -> str | None:
        """Who else could have answered: the dearest of them."""
        return next(
            (
                name
                for name in reversed(self._feeding.compared)
                if name != course.tier and name in course.able
            ),
            None,
        )

    async def _compare(self, course: Course) -> None:
        assert course.heard is not None and course.tier is not None and self._feeding.judge is not None
        other, mine = self._other(course), text_of(bytes(course.heard))
        course.heard = None
        if other is None or not mine or self._feeding.judge not in course.able:
            return
        asked, tiers = course.asked, self._gateway.tiers
        answer = asked.answer_tokens or _ANSWER_TOKENS
        question = len(asked.prompt) // 4
        estimates = (
            (other, Usage(asked.prompt_tokens, 0, answer)),
            *((self._feeding.judge, Usage(question + 2 * answer + 200, 0, REPLY_TOKENS)),) * 2,
        )
        taken = 0.0
        for name, usage in estimates:
            price = tiers[name].price
            taken += 0.0 if price is None else price.cost(usage)
        if not self._purse.take(taken):
            self.left_out["money"] += 1
            return
        bill: list[float] = []
        try:
            second = await ask_aside(self._gateway, other, asked.body)
            bill.append(second.cost or 0.0)
            if not second.text:
                raise TierFailed(f"the tier {other} answered with no text")
            judge = judge_of(self._gateway, self._feeding.judge, bill)
            better = await judge.compare(asked.prompt, mine, second.text)
        finally:
            self._purse.settle(taken, sum(bill))
        self._told(course, other, better)
