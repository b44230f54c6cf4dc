"""How much of the machine others took while something was measured. Linux only: it reads /proc/stat."""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["MUCH", "Neighbours"]

MUCH = 0.05
"""Above this share a figure says little: an engine whose threads wait for each other by spinning loses most of it."""


class Neighbours:
    """Shares of the processors that neither this process nor its children used, nor were idle."""

    def __init__(self) -> None:
        self.shares: list[float] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Around one measurement, whose processes have ended when it is over; a child that its server did not wait for
        counts as somebody else's."""
        began, all_before, own_before = time.perf_counter(), _busy_s(), _own_s()
        try:
            yield
        finally:
            seconds = time.perf_counter() - began
            others = (_busy_s() - all_before) - (_own_s() - own_before)
            self.shares.append(max(others, 0.0) / (seconds * (os.cpu_count() or 1)))

    @property
    def usual(self) -> float:
        """The median share."""
        return statistics.median(self.shares)

    def verdict(self) -> str:
        """A sentence for below the tables."""
        if not self.shares:
            return "Nothing was measured."
        usual, worst = self.usual, max(self.shares)
        text = f"Other programs, and the host, took {usual:.0%} of the processors (median; {worst:.0%} at worst)."
        return (
            text if usual <= MUCH else f"[bold]{text} The machine was busy: these figures are only trials.[/]"
        )


def _busy_s() -> float:
    """Of all processors since the start: user, nice, system, irq, softirq and what the host took; not idle, iowait."""
    fields = list(map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]))
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
