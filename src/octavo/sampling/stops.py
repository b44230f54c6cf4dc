"""Stop strings as a byte automaton that runs inside the step. Knows bytes, not tokens or text.

Aho and Corasick 1975 (doi:10.1145/360825.360855): one state per distinct prefix of a stop string; the depth of the
state is the length of the longest suffix of the text that may still become a stop string, which is exactly what
must be held back from the reader.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["StopAutomaton", "StopMatch", "StopMatcher"]


class StopMatch(NamedTuple):
    """A stop string that is complete."""

    which: int
    """Which of the stop strings (the longest of those that end here)."""
    length: int
    """Its bytes."""
    after: int
    """Bytes of the fed piece that come after it."""


class StopAutomaton:
    """The compiled stop strings of one request; shared by its sequences."""

    def __init__(self, stops: Sequence[bytes]) -> None:
        self._next: list[dict[int, int]] = [{}]
        self._fail = [0]
        self.depth = [0]
        self.match: list[int | None] = [None]
        """Per state: the index of the longest stop string that ends there."""
        self.lengths = [len(stop) for stop in stops]
        for index, stop in enumerate(stops):
            self._insert(index, stop)
        self._link()

    def _insert(self, index: int, stop: bytes) -> None:
        state = 0
        for byte in stop:
            following = self._next[state].get(byte)
            if following is None:
                following = len(self._next)
                self._next[state][byte] = following
                self._next.append({})
                self._fail.append(0)
                self.depth.append(self.depth[state] + 1)
                self.match.append(None)
            state = following
        if self.match[state] is None:
            self.match[state] = index

    def _link(self) -> None:
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for byte, following in self._next[state].items():
                self._fail[following] = self.step(self._fail[state], byte)
                if self.match[following] is None:
                    self.match[following] = self.match[self._fail[following]]
                queue.append(following)

    def step(self, state: int, byte: int) -> int:
        """The state after one more byte."""
        while True:
            following = self._next[state].get(byte)
            if following is not None:
                return following
            if not state:
                return 0
            state = self._fail[state]


class StopMatcher:
    """Where one sequence stands in the automaton."""

    def __init__(self, automaton: StopAutomaton) -> None:
        self._automaton = automaton
        self._state = 0

    def copy(self) -> StopMatcher:
        """Another one that stands where this one does."""
        other = StopMatcher(self._automaton)
        other._state = self._state
        return other

    @property
    def held_bytes(self) -> int:
        """Bytes at the end of the text that may still become a stop string."""
        return self._automaton.depth[self._state]

    def feed(self, piece: bytes, *, armed: bool = True) -> StopMatch | None:
        """Read the bytes of one more token; the first match in them, or None.

        After a match the rest of the piece is not read: the sequence has ended. Not `armed`, a match passes by
        (before `min_tokens`).
        """
        automaton = self._automaton
        if not automaton.lengths:  # nothing to look for
            return None
        state = self._state
        for place, byte in enumerate(piece, 1):
            state = automaton.step(state, byte)
            index = automaton.match[state]
            if index is not None and armed:
                self._state = state
                return StopMatch(index, automaton.lengths[index], len(piece) - place)
        self._state = state
        return None
