"""Read in a tool's environment: what its client is told. Knows only the standard library."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import groupby
from typing import Any

__all__ = ["Clock", "reads", "told"]


class Clock:
    """A tool's clock, which stands where it is set."""

    def __init__(self) -> None:
        self.us = 0

    def s(self) -> float:
        return self.us / 1e6

    def ns(self) -> int:
        return self.us * 1000


def told() -> list[dict[str, Any]]:
    """The requests, from standard input."""
    return list(json.load(sys.stdin))


def reads(request: dict[str, Any], clock: Clock) -> Iterator[bytes]:
    """What is read of an answer: events of the same moment at once. Sets the clock."""
    for at_us, events in groupby(request["events"], key=lambda event: event[0]):
        clock.us = at_us
        yield "".join(text for _, text in events).encode()
