"""Finds each side's best flags, one option after another, and keeps them in a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers.neighbours import MUCH, Neighbours
from benchmarks.peers.sides import Side
from benchmarks.peers.work import Work

__all__ = ["Sweep"]

Measure = Callable[[Work, dict[str, Any]], float]
"""Tokens per second of a work with these flags; 0 where they do not work."""


class Sweep:
    """What was found, by side and likeness of the work, and how busy the machine was meanwhile."""

    def __init__(self, path: Path, processor: str) -> None:
        self._path, self._processor = path, processor
        kept = json.loads(path.read_text()) if path.exists() else {}
        self._found: dict[str, dict[str, Any]] = {}
        if kept.get("processor") == processor:
            self._found = kept["found"]

    def settled(self, side: Side, work: Work) -> bool:
        """Whether there are flags that were found on a quiet machine. On a busy one, one thread beats two."""
        found = self._found.get(self._key(side, work))
        return found is not None and found["others"] <= MUCH

    def flags(self, side: Side, work: Work) -> dict[str, Any]:
        """The flags found, or those before any sweep."""
        found = self._found.get(self._key(side, work), {})
        return {**side.start(), **found.get("flags", {})}

    def search(self, side: Side, work: Work, measure: Measure) -> None:
        """Try each option's other values while the rest stay at the best found so far."""
        neighbours = Neighbours()

        def watched(flags: dict[str, Any]) -> float:
            with neighbours.watched():
                return measure(work, flags)

        best = side.start()
        rate = watched(best)
        for option, values in side.options(work.kind, work.streams).items():
            for value in values[1:]:
                tried = {**best, option: value}
                found = watched(tried)
                if found > rate:
                    best, rate = tried, found
        if rate > 0:  # else nothing ran, and a later call tries again
            found_so = {"flags": best, "tokens_per_s": rate, "others": round(neighbours.usual, 3)}
            self._found[self._key(side, work)] = found_so
            self._save()

    def _key(self, side: Side, work: Work) -> str:
        return f"{side.name} {work.likeness}"

    def _save(self) -> None:
        draft = self._path.with_suffix(".draft")
        draft.write_text(json.dumps({"processor": self._processor, "found": self._found}, indent=1))
        draft.rename(self._path)
