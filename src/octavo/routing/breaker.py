"""Whether a tier is well: after some failures in a row it is left alone, then tried again. Knows no tier and no clock.

closed: it is asked. open: it is left alone until its time has come. half-open: one request is let through, and what
becomes of that decides.
"""

from __future__ import annotations

from typing import Literal

__all__ = ["Breaker", "State"]

State = Literal["closed", "open", "half-open"]

MOST_COOLDOWN_S = 120.0


class Breaker:
    """Of one tier. Every time is of the caller's clock, in seconds."""

    def __init__(self, failures: int = 3, cooldown_s: float = 5.0) -> None:
        """`failures` in a row open it for `cooldown_s`; twice as long each time that it fails when tried again."""
        self._most = failures
        self._first_s = cooldown_s
        self._cooldown_s = cooldown_s
        self._failures = 0
        self._open = False
        self._probing = False
        self.until_s = 0.0
        """When an open one may be tried again."""
        self.reason = ""
        """What failed last."""

    def state(self, now_s: float) -> State:
        """What it is now."""
        if not self._open:
            return "closed" if now_s >= self.until_s else "open"
        return "open" if now_s < self.until_s or self._probing else "half-open"

    def enter(self, now_s: float) -> bool:
        """Whether a request may go there. A half-open one lets one in: who is told yes, tells how it ended."""
        match self.state(now_s):
            case "closed":
                return True
            case "half-open":
                self._probing = True
                return True
            case _:
                return False

    def began(self) -> None:
        """Its answer has begun. Where that was the one to try it with, others need not wait for the end; but if it
        breaks off, the breaker is open again at once."""
        if self._open:
            self._open = self._probing = False
            self._failures, self.until_s = self._most - 1, 0.0

    def succeeded(self) -> None:
        """It has answered."""
        self._failures = 0
        self._open = self._probing = False
        self._cooldown_s = self._first_s
        self.until_s, self.reason = 0.0, ""

    def failed(self, now_s: float, reason: str) -> bool:
        """It has not; True where that has opened it."""
        self._failures += 1
        self.reason = reason
        if not self._open and self._failures < self._most:
            return False
        if self._open and not self._probing and now_s < self.until_s:
            return False  # one that was on its way when it opened
        if self._open:
            self._cooldown_s = min(2 * self._cooldown_s, MOST_COOLDOWN_S)
        fresh = not self._open
        self._open, self._probing = True, False
        self.until_s = now_s + self._cooldown_s
        return fresh

    def left(self) -> None:
        """A request ended without saying anything of the tier: its client went away, say."""
        self._probing = False

    def rest(self, now_s: float, seconds: float, reason: str) -> None:
        """It asks to be left alone for a while; that is no failure."""
        self._probing = False
        self.reason = reason
        self.until_s = max(self.until_s, now_s + min(seconds, MOST_COOLDOWN_S))

    def hear(self, now_s: float) -> None:
        """Somebody has found that it is there: it may be tried at once."""
        if self._open and not self._probing:
            self.until_s = min(self.until_s, now_s)
