"""What answers were worth: what users say, what they ask again, what a judge finds, and whether it has moved.

Knows courses and records; the routes are in server/gateway. Nothing here keeps a request waiting: users' words, and
decisions, go to a file by a thread, and comparisons are made when the answer is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from octavo.errors import InvalidParameter, OctavoError, RoutingError, TierFailed
from octavo.routing.drift import LEAST, Drift
from octavo.routing.exploring import Exploring
from octavo.routing.feedback_metrics import FeedbackMetrics
from octavo.routing.feeding import DAY_S, Feeding, Purse
from octavo.routing.judging import Judging, tried_tier
from octavo.routing.outcomes import Decided, Outcome, OutcomeFile, Source, read_outcomes
from octavo.routing.reask import ReAsks

if TYPE_CHECKING:
    from octavo.routing.asked import Asked
    from octavo.routing.course import Course
    from octavo.routing.decider import Verdict
    from octavo.routing.gateway import Gateway
    from octavo.routing.tiers import Tier

__all__ = ["SESSION_HEADER", "Feedback", "FeedbackRun", "UnknownResponse"]

_logger = logging.getLogger(__name__)

SESSION_HEADER = "x-octavo-session"
"""A request's header: whose conversation it is part of."""
MOST_KNOWN = 100_000
"""Answers that feedback can be given to; the oldest are forgotten."""
MAX_CORRECT_LETTERS = 65_536
_AGAIN_S = 60.0
"""A judge that could not be reached is tried again after so long."""


class UnknownResponse(InvalidParameter):
    """There is no such answer, or it was another key's."""


class Feedback(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a user says of an answer."""

    response_id: str
    thumbs: Literal["up", "down"] | None = None
    score: float | None = None
    """0 is bad, 1 is good."""
    correct: str | None = None
    """What it should have said."""

    @classmethod
    def read(cls, raw: bytes) -> Feedback:
        """Raises InvalidParameter."""
        try:
            found = msgspec.json.decode(raw, type=cls)
        except msgspec.ValidationError as error:
            what, _, place = str(error).partition(" - at `$.")
            name = place.rstrip("`") or None
            raise InvalidParameter(f"{f'{name}: ' if name else ''}{what}.", name) from None
        except msgspec.DecodeError as error:
            raise InvalidParameter(f"The body is no JSON: {error}.") from None
        if not 0 < len(found.response_id) <= 200:
            raise InvalidParameter("response_id is empty or too long; send the answer's id.", "response_id")
        if found.score is not None and not 0 <= found.score <= 1:
            raise InvalidParameter(f"score is {found.score:g}; it is from 0 (bad) to 1 (good).", "score")
        if found.correct is not None and not 0 < len(found.correct) <= MAX_CORRECT_LETTERS:
            raise InvalidParameter(
                f"correct has {len(found.correct):,} letters; it has 1 to {MAX_CORRECT_LETTERS:,}.", "correct"
            )
        if found.thumbs is None and found.score is None and found.correct is None:
            raise InvalidParameter("Nothing is said of the answer; send thumbs, score or correct.", "thumbs")
        return found


class FeedbackRun:
    """Of one gateway."""

    def __init__(
        self,
        gateway: Gateway,
        feeding: Feeding,
        metrics: FeedbackMetrics,
        folder: Path,
        *,
        among: Sequence[str] = (),
        reference: Callable[[], Sequence[float]] = tuple,
        recalibrate: Callable[[], str] | None = None,
        seed: int | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """`folder`: where the outcomes' file begins. `among`: tiers that are explored; all but the judge where it is
        empty. `reference`: scores of the data that the policy learnt from, now. `recalibrate`: finds thresholds anew,
        and says what came of it. `seed`: of all draws. `now_s`: seconds since 1970. Raises RoutingError for a file that
        cannot be written."""
        self._gateway, self._feeding, self._metrics = gateway, feeding, metrics
        self._now_s = now_s
        self._reasks = ReAsks(feeding.reask_minutes) if feeding.reask_minutes else None
        self._known: OrderedDict[tuple[str | None, str], str] = OrderedDict()
        self._purses = {
            "judge": Purse(feeding.judge_cost_a_day or 0.0, now_s),
            "explore": Purse(feeding.explore_cost_a_day or 0.0, now_s),
        }
        share = feeding.explore_share
        self.file = OutcomeFile(folder / feeding.outcomes) if feeding.outcomes else None
        if self.file is not None:
            self._recall(self.file)
        names = among or tuple(name for name in gateway.tiers.names if name != feeding.judge)
        purse = self._purses["explore"]
        self._exploring = Exploring(share, purse, names, seed=seed) if share else None
        self._judging = None
        if feeding.judge is not None:
            self._judging = Judging(gateway, feeding, self._purses["judge"], self._judged, seed=seed)
        self._believed = False
        self._recalibrate = recalibrate
        self._reference = reference
        self._scores_of: Sequence[float] = ()
        self._drifts: dict[str, Drift] = {}

    def _recall(self, file: OutcomeFile) -> None:
        """What was answered, and explored today, before the gateway was started anew."""
        day = self._now_s() // DAY_S
        for (key, name), one in read_outcomes(file.path)[0].items():
            self._known[key, name] = one.tier
            if one.decided is not None and one.time_s // DAY_S == day:
                self._purses["explore"].settle(0.0, one.cost or 0.0)
        while len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)

    # On the way of a request.

    def explore(self, verdict: Verdict, able: Sequence[Tier], asked: Asked) -> Verdict:
        """The verdict, perhaps for another tier."""
        return verdict if self._exploring is None else self._exploring.maybe(verdict, able, asked)

    def begin(self, course: Course) -> None:
        """It was decided."""
        if self._judging is not None and self._believed:
            self._judging.draw(course)

    def on_end(self, course: Course) -> None:
        """It has ended."""
        if self._exploring is not None:
            self._exploring.on_end(course)
        last = course.attempts[-1] if course.attempts else None
        if last is None or last.outcome != "answered" or course.response_id is None or course.tier is None:
            return
        asked, verdict, name = course.asked, course.verdict, (course.asked.key, course.response_id)
        self._known.pop(name, None)
        self._known[name] = course.tier
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        if self.file is not None:
            self.file.add(Decided(
                response_id=course.response_id, time_s=self._now_s(), chosen=verdict.tier, tier=course.tier,
                score=verdict.score, policy=verdict.policy, decided=verdict.decided, key=asked.key,
                propensity=verdict.propensity, elsewhere=verdict.elsewhere, abstained=verdict.abstained,
                cost=course.cost, watched=self._watched(course),
            ))  # fmt: skip
        self._look_for_reask(course)
        if verdict.score is not None:
            self._drift("score", verdict.score)
        self._drift("length", math.log1p(asked.prompt_tokens))
        if self._judging is not None:
            self._judging.on_end(course)

    def _look_for_reask(self, course: Course) -> None:
        asked = course.asked
        if self._reasks is None or course.response_id is None or not self._watched(course):
            return
        who = _user(asked)
        before = self._reasks.ask(who, asked.prompt, course.response_id, self._gateway.now_s())
        if before is not None and before != course.response_id:
            self._outcome(asked.key, before, "reask", 0.0)

    def _watched(self, course: Course) -> bool:
        """Somebody would be seen asking it again."""
        return self._reasks is not None and any(_user(course.asked)) and bool(course.asked.prompt)

    # What is said.

    def give(self, raw: bytes, key: str | None) -> dict[str, object]:
        """A user's words about an answer of its own. Raises InvalidParameter, and UnknownResponse where there is
        none."""
        said = Feedback.read(raw)
        tier = self._known.get((key, said.response_id))
        if tier is None:
            raise UnknownResponse(
                f"There is no answer {said.response_id[:100]!r} of yours here that feedback can be given to; the last "
                f"{MOST_KNOWN:,} are known.",
                "response_id",
            )
        if said.thumbs is not None:
            self._outcome(key, said.response_id, "thumbs", float(said.thumbs == "up"))
        if said.score is not None:
            self._outcome(key, said.response_id, "score", said.score)
        if said.correct is not None:
            self._outcome(key, said.response_id, "correct", 0.0, correct=said.correct)
        return {"object": "feedback", "response_id": said.response_id, "tier": tier}

    def _outcome(
        self,
        key: str | None,
        name: str,
        source: Source,
        good: float,
        *,
        tier: str | None = None,
        correct: str | None = None,
    ) -> None:
        tier = tier or self._known.get((key, name))
        if tier is None:
            return
        self._metrics.outcomes.labels(tier, source, "yes" if good >= 0.5 else "no").inc()
        if self.file is not None:
            self.file.add(Outcome(
                response_id=name, time_s=self._now_s(), tier=tier, source=source, good=good, correct=correct,
                key=key,
            ))  # fmt: skip
        if source != "judge":
            self._drift("outcome", good)

    def _judged(self, course: Course, other: str, better: bool | None) -> None:
        """Where the judge sees no difference, both answers are good."""
        self._metrics.judged.labels("same" if better is None else "better" if better else "worse").inc()
        assert course.response_id is not None and course.tier is not None
        for tier, good in ((course.tier, better is not False), (other, better is not True)):
            self._outcome(course.asked.key, course.response_id, "judge", float(good), tier=tier)

    def _drift(self, of: str, value: float) -> None:
        if not self._feeding.drift_window:
            return
        if of == "score" and (reference := self._reference()) is not self._scores_of:
            self._scores_of = reference  # another policy: its scores are others
            self._drifts.pop("score", None)
        if of not in self._drifts:
            few = of != "score" or len(self._scores_of) < LEAST
            start = () if few else self._scores_of
            self._drifts[of] = Drift(start, window=self._feeding.drift_window)
        reading = self._drifts[of].add(value)
        if reading is not None:
            self._metrics.on_drift(of, reading)
            if reading.alarm:
                _logger.warning(
                    "drift: the last %d requests' %s is %.3f from the reference (bound %.3f, PSI %.2f); thresholds and "
                    "labels may be out of date",
                    reading.values, of, reading.distance, reading.bound, reading.psi,
                )  # fmt: skip

    # Its life.

    async def start(self) -> None:
        """Try the judge. Raises RoutingError for one that is no better than chance; one that cannot be reached is tried
        later."""
        if self._judging is None:
            return
        name = self._feeding.judge
        assert name is not None
        bill: list[float] = []
        try:
            trial = await tried_tier(self._gateway, name, bill)
        except TierFailed as error:
            _logger.warning("the judge %s was not tried, and nothing is compared yet: %s", name, error)
            return
        finally:
            self._purses["judge"].settle(0.0, sum(bill))
        trial.check(name)
        self._believed = True
        _logger.info("the judge %s was right about %d of %d pairs", name, trial.right, trial.pairs)

    async def run(self) -> None:
        """For ever: compare answers, find thresholds."""
        await asyncio.gather(self._judge_on(), self._recalibrate_on())

    async def _recalibrate_on(self) -> None:
        every_s = 3600 * self._feeding.recalibrate_hours
        while every_s and self._recalibrate is not None:
            await asyncio.sleep(every_s)
            try:
                _logger.info("%s", await asyncio.to_thread(self._recalibrate))
            except OctavoError as error:
                _logger.warning("the threshold stays as it is: %s", error)

    async def _judge_on(self) -> None:
        if self._judging is None:
            return
        while not self._believed:
            await asyncio.sleep(_AGAIN_S)
            try:
                await self.start()
            except RoutingError as error:
                _logger.error("%s Nothing is compared.", error)
                return
        await self._judging.run()

    def text(self) -> None:
        """Brings figures up to now, before they are shown."""
        for of, purse in self._purses.items():
            self._metrics.cost.labels(of).set(purse.spent)
        if self._judging is not None:
            for why, count in self._judging.left_out.items():
                self._metrics.left_out.labels(why).set(count)
        if self.file is not None:
            self._metrics.lost.set(self.file.lost)

    def close(self) -> None:
        """When all is written."""
        if self.file is not None:
            with contextlib.suppress(OctavoError):
                self.file.close()


def _user(asked: Asked) -> tuple[str | None, str | None, str | None]:
    """Who asks, as far as that is known."""
    said = asked.body.get("user")
    return asked.key, said if isinstance(said, str) else None, asked.headers.get(SESSION_HEADER)
