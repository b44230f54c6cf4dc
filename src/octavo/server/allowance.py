"""What one key may use, and what it uses now: requests at once, requests and tokens a minute. Knows no request."""

from __future__ import annotations

import time
from collections.abc import Callable

from octavo.server.access import Key

__all__ = ["Allowance", "Bucket"]

_MINUTE_S = 60.0


class Bucket:
    """So much in a minute: all of it at once, or evenly, or anything between. What is used flows off with time; what is
    held does not, until it is used or given back."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._at_s = clock()
        self._used = 0.0
        self._held = 0

    @property
    def per_minute(self) -> int:
        return self._per_minute

    @per_minute.setter
    def per_minute(self, value: int) -> None:
        self._flow()  # so far at the old rate
        self._per_minute = value

    @property
    def remaining(self) -> int:
        """What could be held now."""
        self._flow()
        return max(0, int(self._per_minute - self._used - self._held))

    @property
    def full_after_s(self) -> float:
        """Seconds until all of it is there again, if what is held is used now."""
        self._flow()
        return self._seconds(self._used + self._held)

    def wait_s(self, amount: int, *, leave: int = 0) -> float:
        """Seconds until `amount` can be held with `leave` left over; 0: now. It may come sooner, when what is held is
        given back."""
        self._flow()
        return self._seconds(self._used + self._held + amount + leave - self._per_minute)

    def hold(self, amount: int) -> None:
        """Take it, whether it is there or not: who asks looks before."""
        self._held += amount

    def use(self, amount: int, *, held: int) -> None:
        """So much has been used, of which `held` was held for it."""
        self._flow()
        self._held -= held
        self._used += amount

    def give_back(self, held: int) -> None:
        """It is not needed any more."""
        self._held -= held

    def _seconds(self, amount: float) -> float:
        return max(0.0, amount) * _MINUTE_S / self._per_minute

    def _flow(self) -> None:
        now = self._clock()
        self._used = max(0.0, self._used - (now - self._at_s) * self._per_minute / _MINUTE_S)
        self._at_s = now


class Allowance:
    """One key's. Requests that run when its limits change keep what they hold."""

    def __init__(self, key: Key, clock: Callable[[], float] = time.monotonic) -> None:
        self.key = key
        self.open = 0
        """Requests that run."""
        self.requests: Bucket | None = None
        self.tokens: Bucket | None = None
        self._clock = clock
        self.change(key)

    def change(self, key: Key) -> None:
        """The same key with other limits."""
        self.key = key
        self.requests = self._bucket(self.requests, key.limits.requests_per_minute)
        self.tokens = self._bucket(self.tokens, key.limits.tokens_per_minute)

    def _bucket(self, bucket: Bucket | None, per_minute: int | None) -> Bucket | None:
        if per_minute is None:
            return None
        if bucket is None:
            return Bucket(per_minute, self._clock)
        bucket.per_minute = per_minute
        return bucket
