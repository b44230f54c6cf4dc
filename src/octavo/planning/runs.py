"""Simulations beside each other, each made once: what a journal knows is taken from there. Knows no search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from octavo.planning.journal import Journal
from octavo.planning.trying import Task, Tried, attempt

__all__ = ["Runs", "Told"]

Told = Callable[[str, int, int | None], None]
"""What is done now, how much of it, and of how much."""


class Runs:
    """Those of one search."""

    def __init__(
        self, executor: Executor, journal: Journal, told: Told = lambda words, done, total: None
    ) -> None:
        self._executor, self._journal = executor, journal
        self.told = told
        self.made = 0
        """Simulations; what the journal had is not among them."""

    @property
    def taken_over(self) -> int:
        """Outcomes that were in the journal's file."""
        return self._journal.taken_over

    def all(self, tasks: Sequence[Task]) -> list[Tried]:
        """In order."""
        waiting = [None if self._journal.get(one) else self._executor.submit(attempt, one) for one in tasks]
        outcomes = []
        for task, future in zip(tasks, waiting, strict=True):
            known = self._journal.get(task)
            if known is None:
                assert future is not None
                known = future.result()
                self._journal.put(task, known)
                self.made += 1
            outcomes.append(known)
        return outcomes

    def one(self, task: Task) -> Tried:
        return self.all([task])[0]
