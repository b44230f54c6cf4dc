"""Collects what was measured and prints the tables. Knows no measuring."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.peers.client import Load
from benchmarks.peers.sides import Side
from benchmarks.peers.work import OUTPUTS, Work

__all__ = ["Report"]


class Report:
    """Rates by work and side, one list of samples a round."""

    def __init__(self, works: Sequence[Work], sides: Sequence[Side]) -> None:
        self.works, self.sides = list(works), list(sides)
        self.rounds: dict[tuple[Work, str], list[list[float]]] = defaultdict(list)
        """Tokens per second; an empty list is a round that failed."""
        self.loads: dict[tuple[Work, str], list[Load]] = defaultdict(list)
        self.reasons: dict[tuple[str, str], str] = {}
        """Why a side has no figure, by side and work (or "all")."""
        self.flags: dict[tuple[str, str], dict[str, Any]] = {}
        """By side and likeness of the work."""

    def add(self, work: Work, side: Side, samples: Sequence[float]) -> None:
        self.rounds[work, side.name].append(list(samples))

    def add_load(self, work: Work, side: Side, load: Load) -> None:
        self.loads[work, side.name].append(load)
        self.add(work, side, [load.rate(OUTPUTS)])

    def fail(self, side: Side, work: Work | None, reason: str) -> None:
        self.reasons[side.name, work.name if work else "all"] = reason
        if work is not None:
            self.add(work, side, [])

    def best(self, work: Work, side: Side) -> float | None:
        return max((sample for each in self.rounds[work, side.name] for sample in each), default=None)

    def median(self, work: Work, side: Side) -> float | None:
        samples = [sample for each in self.rounds[work, side.name] for sample in each]
        return statistics.median(samples) if samples else None

    def base(self, side: Side) -> Side | None:
        """The Octavo that a side is compared with: the one with the same format, else the first."""
        own = [each for each in self.sides if each.peer.name == "octavo"]
        return next((each for each in own if each.form == side.form), own[0] if own else None)

    def ratios(self, work: Work, side: Side) -> list[float]:
        """Octavo's best of a round by this side's best of the same round."""
        base = self.base(side)
        if base is None:
            return []
        pairs = zip(self.rounds[work, base.name], self.rounds[work, side.name], strict=False)
        return [max(ours) / max(theirs) for ours, theirs in pairs if ours and theirs]

    def print(self, console: Console, title: str) -> None:
        console.print(self._rates(title))
        if any(side.peer.name != "octavo" for side in self.sides):
            console.print(self._compared())
        if self.loads:
            console.print(self._times())
        console.print(self._used())
        if self.reasons:
            console.print(self._missing())

    def _rates(self, title: str) -> Table:
        table = Table("tokens/s: best (median)", title=title)
        for side in self.sides:
            table.add_column(side.name.replace(":", "\n"), justify="right")
        for work in self.works:
            cells = []
            for side in self.sides:
                best, median = self.best(work, side), self.median(work, side)
                cells.append("—" if best is None or median is None else f"{_short(best)} ({_short(median)})")
            table.add_row(work.name, *cells)
        return table

    def _compared(self) -> Table:
        peers = [side for side in self.sides if side.peer.name != "octavo"]
        table = Table("peer → Octavo, times: median (range)", title="Octavo by the peer, in the same round")
        for side in peers:
            table.add_column(side.name.replace(":", "\n"), justify="right")
        for work in self.works:
            cells = []
            for side in peers:
                found = self.ratios(work, side)
                cells.append(
                    f"{statistics.median(found):.2f} ({min(found):.2f}…{max(found):.2f})" if found else "—"
                )
            table.add_row(work.name, *cells)
        return table

    def _times(self) -> Table:
        table = Table(
            "HTTP",
            "side",
            "first token, median, ms",
            "first token, p99, ms",
            title="Best of each side's rounds",
        )
        for (work, name), loads in self.loads.items():
            table.add_row(
                work.name,
                name,
                f"{min(load.first_ms(0.5) for load in loads):.0f}",
                f"{min(load.first_ms(0.99) for load in loads):.0f}",
            )
        return table

    def _used(self) -> Table:
        table = Table("side", "work", "flags", title="Flags")
        for peer in dict.fromkeys(side.peer for side in self.sides):
            table.add_row(peer.name, "", peer.why)
        for (name, likeness), flags in self.flags.items():
            if flags:
                table.add_row(name, likeness, ", ".join(f"{key} {value}" for key, value in flags.items()))
        return table

    def _missing(self) -> Table:
        table = Table("side", "work", "reason", title="Not measured")
        for (name, work), reason in self.reasons.items():
            table.add_row(name, work, reason)
        return table

    def json(self) -> dict[str, Any]:
        """Everything, for a file."""
        return {
            "rounds": [
                {"work": work.name, "side": name, "tokens_per_s": rounds}
                for (work, name), rounds in self.rounds.items()
            ],
            "first_token_ms": [
                {"work": work.name, "side": name, "median": load.first_ms(0.5), "p99": load.first_ms(0.99)}
                for (work, name), loads in self.loads.items()
                for load in loads
            ],
            "flags": [
                {"side": name, "work": likeness, **flags} for (name, likeness), flags in self.flags.items()
            ],
            "reasons": [
                {"side": name, "work": work, "reason": reason}
                for (name, work), reason in self.reasons.items()
            ],
        }


def _short(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"
