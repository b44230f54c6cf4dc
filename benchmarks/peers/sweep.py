"""Finds each side's best flags, one option after another, and keeps them in a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers.sides import Side
from benchmarks.peers.work import Work

__all__ = ["Sweep"]

Measure = Callable[[Work, dict[str, Any]], float]
"""Tokens per second of a work with these flags; 0 where they do not work."""


class Sweep:
    """What was found, by side and likeness of the work."""

    def __init__(self, path: Path, processor: str) -> None:
        self._path, self._processor = path, processor
        kept = json.loads(path.read_text()) if path.exists() else {}
        self._found: dict[str, dict[str, Any]] = (
            kept.get("found", {}) if kept.get("processor") == processor else {}
        )

    def known(self, side: Side, work: Work) -> dict[str, Any] | None:
        """The flags found earlier, or None."""
        return self._found.get(self._key(side, work))

    def flags(self, side: Side, work: Work) -> dict[str, Any]:
        """The flags found, or those before any sweep."""
        return {**side.start(), **(self.known(side, work) or {})}

    def search(self, side: Side, work: Work, measure: Measure, base: dict[str, Any] | None = None) -> None:
        """Try each option's other values while the rest stay at the best found so far."""
        best = {**side.start(), **(base or {})}
        rate = measure(work, best)
        for option, values in side.options(work.kind, work.streams).items():
            for value in values:
                if value == best[option]:
                    continue
                tried = {**best, option: value}
                found = measure(work, tried)
                if found > rate:
                    best, rate = tried, found
        if rate > 0:  # else nothing ran, and a later call tries again
            self._found[self._key(side, work)] = best
            self._save()

    def _key(self, side: Side, work: Work) -> str:
        return f"{side.name} {work.likeness}"

    def _save(self) -> None:
        draft = self._path.with_suffix(".draft")
        draft.write_text(json.dumps({"processor": self._processor, "found": self._found}, indent=1))
        draft.rename(self._path)
