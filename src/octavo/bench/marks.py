"""What is found in the events of some requests: when what came first, and the gaps. Knows events, no metric and no run.

See octavo.bench.times for what counts as a token.
"""

from __future__ import annotations

import numpy as np

from octavo.bench.distribution import Floats, Ints
from octavo.bench.events import Bools, Events
from octavo.bench.record import Kind

__all__ = ["Marks"]

_TEXT = int(Kind.ANSWER | Kind.REASONING | Kind.TOOL)
_REPLY = int(Kind.ANSWER | Kind.TOOL)


class Marks:
    """Arrays with one value for each of these requests; times in microseconds, NaN for what there is not."""

    def __init__(self, events: Events, ok: Bools) -> None:
        """`ok`: those that did not fail; the others have no gaps."""
        self.tokens = events.total()
        """In all events."""
        text = (events.kind & _TEXT) != 0
        first = events.first(text)
        self.first_us = events.time(first)
        """The first token, of failed requests too."""
        self.reply_us = _first_us(events, _REPLY)
        self.answer_us = _first_us(events, Kind.ANSWER)
        self.sentence_us = _first_us(events, Kind.SENTENCE)
        self.finish_us = _first_us(events, Kind.FINISH)
        self._gaps(events, np.where(ok, first, -1), text)

    def _gaps(self, events: Events, first: Ints, text: Bools) -> None:
        """The gaps of each request from its first token, which came with the event at `first` [requests]."""
        since = events.since(first)
        content = since & (text | (events.tokens > 0))
        self.icl = self.itl = events.gaps(content)
        """Between events, and between tokens: gaps, and how many each request has."""

        placed = self.tokens > 0
        counted = content & (events.tokens > 0)
        told = np.flatnonzero((first >= 0) & placed)
        counted[first[told]] = True
        at_first = events.total_to(first)
        # Text before any count, where counts come an event late: it has a token, the first one of the next count.
        late = told[at_first[told] == 0]
        if len(late):
            at_first[late] = 1
            counts = np.where(counted, events.tokens, 0)
            next_count = events.first(counts > 0)[late]
            counted[next_count[events.tokens[next_count] == 1]] = False
        if not np.array_equal(counted, content):
            self.itl = events.gaps(counted)
        total = np.where((first >= 0) & placed, self.tokens, 0)
        self.zeros: Ints = np.maximum(total - 1 - self.itl[1], 0)
        """Gaps of nothing between tokens, beside those in `itl`."""
        more = (total - at_first).astype(np.float64)
        more[more <= 0] = np.nan
        self.tpot_us: Floats = (events.time(events.last(counted)) - self.first_us) / more


def _first_us(events: Events, kind: int) -> Floats:
    """When each request's first event with any of `kind` came."""
    return events.time(events.first((events.kind & int(kind)) != 0))
