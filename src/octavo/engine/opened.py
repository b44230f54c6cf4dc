"""A request on its way: its record, its reader, and when things last happened. Knows no process."""

from __future__ import annotations

import time

from octavo.engine.journal import Record
from octavo.engine.observer import Observer
from octavo.engine.stream import Stream
from octavo.scheduling.outputs import SequenceOutput

__all__ = ["Opened"]


class Opened:
    """One that runs or waits. Times are monotonic seconds."""

    __slots__ = ("arrival", "last", "record", "sent", "stream")

    def __init__(self, record: Record, stream: Stream, arrival: float) -> None:
        self.record = record
        self.stream = stream
        self.arrival = arrival
        self.sent = False
        """The engine process that runs now has it."""
        self.last: list[float | None] = [None] * record.params.n

    def tell(self, output: SequenceOutput, observer: Observer) -> None:
        """Tokens have come."""
        now, last = time.monotonic(), self.last[output.child]
        if not any(self.last):
            observer.on_first_tokens(len(self.record.prompt), now - self.arrival)
        observer.on_tokens(len(output.samples), None if last is None else now - last)
        self.last[output.child] = now
