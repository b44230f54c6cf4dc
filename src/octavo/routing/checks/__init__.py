"""Small labelled sets, made by hand, by which what feedback concludes is judged. Knows files, and no model."""

from __future__ import annotations

import random
from dataclasses import dataclass
from importlib import resources

import msgspec

__all__ = ["Found", "Moved", "Pair", "Question", "drift_cases", "judge_pairs", "reask_pairs"]


class Pair(msgspec.Struct, frozen=True):
    """Two requests of one user, one after the other."""

    first: str
    second: str
    again: bool
    """The second asks the same as the first."""
    later: bool = False
    """It was written when what finds such pairs was finished, and changed nothing of it."""


class Question(msgspec.Struct, frozen=True):
    """A question with a right and a wrong answer."""

    question: str
    good: str
    bad: str


class Moved(msgspec.Struct, frozen=True):
    """A reference and a window after it; values are drawn from beta distributions, always alike."""

    about: str
    before: tuple[float, float]
    """The beta distribution of the reference."""
    after: tuple[float, float]
    mixed: float
    """Of the window comes from `after`, the rest from `before`."""
    seed: int
    moved: bool

    def values(self, reference: int, window: int) -> tuple[list[float], list[float]]:
        """So many of each."""
        source = random.Random(self.seed)
        first = [source.betavariate(*self.before) for _ in range(reference)]
        second = [
            source.betavariate(*(self.after if source.random() < self.mixed else self.before))
            for _ in range(window)
        ]
        return first, second


@dataclass(frozen=True)
class Found:
    """How often an alarm was right."""

    true: int
    """Alarms where there should be one."""
    false: int
    """Alarms where there should be none."""
    missed: int
    right_silence: int

    @property
    def precision(self) -> float:
        """Of the alarms, those that were right; 0 where there was none."""
        return self.true / (self.true + self.false) if self.true + self.false else 0.0

    @property
    def recall(self) -> float:
        """Of what should have been found, what was."""
        return self.true / (self.true + self.missed) if self.true + self.missed else 0.0

    @classmethod
    def of(cls, pairs: list[tuple[bool, bool]]) -> Found:
        """`pairs`: whether there should be an alarm, and whether there was."""
        return cls(
            *(pairs.count(one) for one in ((True, True), (False, True), (True, False), (False, False)))
        )


def reask_pairs() -> tuple[Pair, ...]:
    """In the order of the file: a pair that is the same question, and one that is not, in turns."""
    return tuple(msgspec.json.decode(line, type=Pair) for line in _lines("reask.jsonl"))


def judge_pairs() -> tuple[Question, ...]:
    """In the order of the file. In most, the wrong answer is the longer one: length is no help."""
    return tuple(msgspec.json.decode(line, type=Question) for line in _lines("judge.jsonl"))


def drift_cases() -> tuple[Moved, ...]:
    """Half of them have moved."""
    return tuple(msgspec.json.decode(line, type=Moved) for line in _lines("drift.jsonl"))


def _lines(name: str) -> list[str]:
    text = resources.files("octavo.routing.checks").joinpath(name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line.strip()]
