"""Which request ends the engine: after a death its step's requests are tried again in halves. Knows names, no process.

The search is group testing by halving (R. Dorfman, 1943): what dies again has the culprit in it. Requests outside of
the half that is on trial wait; a half that passes, which is one token of each, runs on while the next one is tried.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from octavo.config import Pooling
from octavo.errors import Quarantined
from octavo.sampling.params import SamplingParams

__all__ = ["NOTHING", "Finding", "Quarantine", "Suspicion"]

STRIKES = 2
"""Deaths alone in a step, after which a request is not tried again."""

MAX_QUARANTINED = 256
"""Requests that are remembered; a client may send them again without end."""


class Finding(NamedTuple):
    """What a death told."""

    learned: bool
    """Fewer requests are suspected than before."""
    culprit: str | None = None
    """It is not tried again."""


NOTHING = Finding(False)


class Suspicion:
    """Who may be given to the engine, and who never again. Order is kept: what came first is tried first."""

    def __init__(self) -> None:
        self._trial: list[str] = []
        """Must give a token each before others may run."""
        self._later: list[list[str]] = []
        self._admitted: set[str] = set()
        """By the engine process that runs now, while there is a trial."""
        self._strikes: dict[str, int] = {}
        self._last: tuple[int, frozenset[tuple[str, int]]] = 0, frozenset()
        """The step that ended last: its place, its requests and how far each was."""

    @property
    def searching(self) -> bool:
        """Not everybody may run."""
        return bool(self._trial)

    @property
    def trial(self) -> Sequence[str]:
        """Those that are tried now and have not passed."""
        return self._trial

    def allows(self, name: str) -> bool:
        """It may be given to the engine now."""
        return not self._trial or name in self._admitted

    def died(
        self, step: Sequence[str], tokens: Mapping[str, int], *, outside: bool, place: int = 0
    ) -> Finding:
        """The engine died in a step that computed for `step`; `tokens`: how many had been delivered of each; `place`:
        where in its life and in its step it was. A signal from `outside` tells nothing of them, unless the same step
        dies of one again, at the same place: what is killed at random moments dies at others."""
        identity = place, frozenset((name, tokens[name]) for name in step)
        again = bool(step) and identity == self._last
        self._last = identity
        if (outside and not again) or not step:
            self._try(self._trial, *self._later)
            return NOTHING
        if len(step) == 1:
            (name,) = step
            self._strikes[name] = self._strikes.get(name, 0) + 1
            if self._strikes[name] >= STRIKES:
                self._trial, self._later = [], []
                return Finding(True, name)
        # Those that gave a token since they were on trial are none of those that did not let others run.
        suspects = [name for name in step if name in self._trial] or list(step)
        half = (len(suspects) + 1) // 2
        self._try(suspects[:half], suspects[half:], *self._later)
        return Finding(True)

    def passed(self, name: str) -> bool:
        """It has given a token, or is gone. True: others may run now that could not before."""
        if name not in self._trial:
            return False
        self._trial.remove(name)
        return self._next()

    def forget(self, name: str) -> bool:
        """It has ended. True: as in `passed`."""
        self._strikes.pop(name, None)
        for group in self._later:
            if name in group:
                group.remove(name)
        return self.passed(name)

    def waited(self) -> bool:
        """Those on trial have had their time: they pass. True: as in `passed`."""
        self._trial.clear()
        return self._next()

    def _try(self, *groups: list[str]) -> None:
        """One after the other, with an engine that has nobody yet."""
        self._trial, self._later, self._admitted = [], list(groups), set()
        self._next()

    def _next(self) -> bool:
        if self._trial:
            return False
        while self._later and not self._trial:
            self._trial = self._later.pop(0)
            self._admitted.update(self._trial)
        return True


class Quarantine:
    """Requests that are not tried again, by what they ask for: clients send again what ended in a 500."""

    def __init__(self) -> None:
        self._reasons: dict[bytes, str] = {}

    def add(self, prompt: Sequence[int], params: SamplingParams, pooling: Pooling | None, ended: str) -> str:
        """Remember a request; `ended`: how the engine did, the last time. Returns what its client is told."""
        why = (
            f"The engine ended twice while it computed this request alone (the last time: {ended}), so it is not tried "
            "again; please report it, with the server's log."
        )
        if len(self._reasons) >= MAX_QUARANTINED:
            del self._reasons[next(iter(self._reasons))]
        self._reasons[_digest(prompt, params, pooling)] = why
        return why

    def check(self, prompt: Sequence[int], params: SamplingParams, pooling: Pooling | None) -> None:
        """Raise Quarantined for a request that is the same as one of them."""
        if self._reasons and (why := self._reasons.get(_digest(prompt, params, pooling))):
            raise Quarantined(why)


def _digest(prompt: Sequence[int], params: SamplingParams, pooling: Pooling | None) -> bytes:
    asked = msgspec.msgpack.encode((tuple(prompt), params, pooling))
    return hashlib.blake2b(asked, digest_size=16).digest()
