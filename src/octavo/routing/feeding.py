"""How a gateway learns what its answers were worth: the table [feedback], and what it may cost. Knows no request."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import msgspec

from octavo.errors import SettingsError
from octavo.routing.nearest import nearest

__all__ = ["DAY_S", "Feeding", "Purse", "check_feeding"]

DAY_S = 86_400


class Feeding(msgspec.Struct, frozen=True, kw_only=True):
    """The table [feedback]."""

    outcomes: str = ""
    """A file, beside the tiers' own, that gets a line for each decision and each outcome; without it none is kept."""
    reask_minutes: float = 10.0
    """Who asks nearly the same within so many minutes was not content; 0 looks for none."""
    judge: str | None = None
    """The tier that compares answers."""
    compared: tuple[str, ...] = ()
    """The tiers whose answers are compared; all but the judge where it is left out."""
    judge_share: float = 0.02
    """Of the answered requests are compared."""
    judge_cost_a_day: float | None = None
    """What the judge and the second answers may cost in a day (UTC)."""
    explore_share: float = 0.0
    """Of the decided requests go to another tier than was decided."""
    explore_cost_a_day: float | None = None
    """What those requests may cost in a day (UTC)."""
    drift_window: int = 500
    """So many scores, lengths or outcomes are compared with the reference at once; 0 compares none."""
    recalibrate_hours: float = 0.0
    """How often thresholds are found anew from the outcomes; 0 never."""
    recalibrate_quality: float = 0.95
    """Of the best tier's quality, for that."""


def check_feeding(found: Feeding, tiers: Sequence[str], unpriced: Sequence[str]) -> Feeding:
    """With all that was left out. `unpriced`: tiers without prices. Raises SettingsError."""
    for name, least, most in (
        ("reask_minutes", 0, 1440),
        ("judge_share", 0, 1),
        ("explore_share", 0, 0.5),
        ("recalibrate_hours", 0, 8784),
        ("recalibrate_quality", 0.01, 1.5),
    ):
        value = getattr(found, name)
        if not least <= value <= most:
            raise SettingsError(f"[feedback] {name} is {value:g}; it is from {least:g} to {most:g}.")
    if found.drift_window and found.drift_window < 100:
        raise SettingsError(
            f"[feedback] drift_window is {found.drift_window}; fewer than 100 values show nothing."
        )
    if found.explore_share:
        _money("explore_cost_a_day", found.explore_cost_a_day, tiers, unpriced, "explore_share")
        if len(tiers) < 2:
            raise SettingsError("[feedback] explore_share needs two tiers or more.")
    if found.judge is None:
        if found.compared:
            raise SettingsError("[feedback] compared names tiers, and there is no judge; add judge.")
        return found
    for name in (found.judge, *found.compared):
        if name not in tiers:
            raise SettingsError(f"[feedback] judge or compared: {name!r} is no tier; {nearest(name, tiers)}")
    compared = found.compared or tuple(name for name in tiers if name != found.judge)
    if found.judge in compared:
        raise SettingsError(
            f"[feedback] judge is {found.judge!r}, which is among compared; nobody judges its own answers."
        )
    if len(set(compared)) < 2:
        raise SettingsError(
            f"[feedback] judge is {found.judge!r}, and answers of {len(set(compared))} other tier are no pair to "
            "compare; two tiers or more beside the judge are needed."
        )
    _money("judge_cost_a_day", found.judge_cost_a_day, (found.judge, *compared), unpriced, "a judge")
    return msgspec.structs.replace(found, compared=compared)


def _money(name: str, value: float | None, tiers: Sequence[str], unpriced: Sequence[str], what: str) -> None:
    if value is None or not 0 <= value < math.inf:
        raise SettingsError(
            f"[feedback] {what} costs money, and {name} is {'missing' if value is None else value}; say how much a day."
        )
    for one in tiers:
        if one in unpriced:
            raise SettingsError(
                f"[feedback] {name} cannot be kept: the tier {one} has no price; write one, 0 for what costs nothing."
            )


class Purse:
    """So much money a day. What is not known yet is estimated, and put right when it is known."""

    def __init__(self, a_day: float, now_s: Callable[[], float] = time.time) -> None:
        """`now_s`: seconds since 1970; a day begins at midnight, UTC."""
        self.a_day = a_day
        self._now_s = now_s
        self._day = -1
        self._spent = 0.0

    @property
    def spent(self) -> float:
        """Today."""
        day = int(self._now_s() // DAY_S)
        if day != self._day:
            self._day, self._spent = day, 0.0
        return self._spent

    def has(self, cost: float) -> bool:
        """There is so much left."""
        return self.spent + cost <= self.a_day

    def take(self, cost: float) -> bool:
        """Take it where there is so much left."""
        if not self.has(cost):
            return False
        self._spent += cost
        return True

    def settle(self, taken: float, cost: float) -> None:
        """It was not `taken` but `cost`."""
        self._spent = max(self.spent + cost - taken, 0.0)
