"""How long an engine that dies is started again, and how soon. Knows counts and seconds, no process."""

from __future__ import annotations

__all__ = ["Patience"]

MAX_DEATHS = 5
"""Deaths in a row without a token between them, and of which nothing was learned, after which there is no hope …"""
MAX_KILLS = 10
"""… or so many where a signal from outside ended each …"""
MAX_CULPRITS = 3
"""… or so many requests that ended it: then it is not they."""
STEADY_S = 30.0
"""A process that served this long did not die of what ended the one before."""
BACKOFF_S = 0.1
"""Between the second death in a row and the third process; the first is replaced at once, and each later one waits
twice as long as the one before."""
MAX_BACKOFF_S = 5.0


class Patience:
    """Counts what went wrong since something went well."""

    def __init__(self) -> None:
        self._deaths = self._faults = self._culprits = 0

    def progress(self) -> None:
        """Somebody was given a token."""
        self._deaths = self._faults = self._culprits = 0

    def died(self, served_s: float, *, outside: bool, learned: bool, culprit: bool) -> None:
        """The engine did, after it had served so long; `learned`: fewer requests are suspected now, `culprit`: one was
        found."""
        if served_s > STEADY_S or learned:
            self._deaths = self._faults = 0
        if not learned:
            self._deaths += 1
            self._faults += not outside
        self._culprits += culprit

    @property
    def wait_s(self) -> float:
        """Until the next process may start."""
        return min(BACKOFF_S * 2 ** (self._deaths - 2), MAX_BACKOFF_S) if self._deaths > 1 else 0.0

    @property
    def exhausted(self) -> str | None:
        """Why there is no hope, in words; None while there is some."""
        if self._culprits >= MAX_CULPRITS:
            return f"ended with {self._culprits} requests in a row, without progress between them"
        if self._faults >= MAX_DEATHS or self._deaths >= MAX_KILLS:
            return f"died {self._deaths} times without progress"
        return None
