"""Whether a server keeps up with the load: how many of the offered requests pile up. Knows arrivals and ends only.

A short run can meet a bound although the server is too slow: the queue has not grown long enough yet. Its growth shows
at once. If a share of what is offered is never worked off, the number in flight grows by this share of the arrivals:
the slope of the number in flight over the rate of arrivals estimates it without bias, for any number of requests at
once and any service times, and for a server that keeps up it is 0 (Little, 1961; the rate stability of queues).

Near what a server can just do, the number in flight wanders like a random walk, and no run tells one from the other
with few requests. `octavo.bench.search` therefore takes the mean over several runs.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from octavo.bench.record import Run
from octavo.bench.window import Window

__all__ = ["LIMIT", "Backlog", "backlog"]

LIMIT = 0.05
"""Of the offered requests. Queues with one server and with 16 that have 80 % of the load that they can do are taken for
growing in at most 5 % of runs with 300 requests, and those with 120 % are found in 85 % of them or more (tested)."""
_BLOCKS = 10
_T_LIMIT = 3.0
_LEAST = 20


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """How the number of requests grew that should have been sent and had not ended."""

    share: float
    """Of the offered requests: those that piled up. Below 0: the backlog fell."""
    t: float
    """The growth over its standard error, from how the number in flight scatters about the straight line."""
    first: float
    """Requests in flight in the window's first tenth, on average."""
    last: float
    """And in its last tenth."""

    @property
    def grows(self) -> bool:
        """Whether this run alone says that the server fell behind."""
        return self.share > LIMIT and self.t > _T_LIMIT


def backlog(run: Run, window: Window) -> Backlog | None:
    """Of the window. None for a closed loop, where there is never more than its clients, and for too few requests."""
    start, end = window.start_us, window.end_us
    intended = np.array([one.intended_us for one in run.exchanges], dtype=np.float64)
    ended = np.array([one.end_us for one in run.exchanges], dtype=np.float64)
    arrivals = int(((intended >= start) & (intended < end)).sum())
    if run.clients is not None or arrivals < _LEAST:
        return None
    edges = np.linspace(start, end, _BLOCKS + 1)
    # Seconds spent in flight up to each edge, summed over requests: its differences are means over blocks, exactly.
    total = np.array([np.clip(np.minimum(ended, edge) - intended, 0.0, None).sum() for edge in edges])
    length = (end - start) / _BLOCKS
    means = np.diff(total) / length
    place = np.arange(_BLOCKS) - (_BLOCKS - 1) / 2
    growth = float(place @ means) / float(place @ place)  # requests a block
    scatter = means - means.mean() - growth * place
    error = math.sqrt(float(scatter @ scatter) / (_BLOCKS - 2) / float(place @ place))
    t = growth / error if error > 0.0 else math.copysign(1e9, growth) if growth else 0.0
    return Backlog(share=growth * _BLOCKS / arrivals, t=t, first=float(means[0]), last=float(means[-1]))
