"""The steady part of a run: its beginning and its end, where the load is another, are left out, and it says so.

Knows when requests were meant to be sent and when they ended; no metric.
"""

from __future__ import annotations

import msgspec
import numpy as np

from octavo.bench.distribution import Ints
from octavo.bench.record import Exchange, Run
from octavo.errors import InvalidParameter

__all__ = ["MIN_REQUESTS", "WARMUP_MOST", "WARMUP_SHARE", "Window", "choose", "explicit", "whole"]

WARMUP_SHARE = 0.1
"""Of the time in which sessions begin: so much at least is warm-up."""
WARMUP_MOST = 1 / 3
"""And so much at most, so that long answers in a short run leave something to measure."""
MIN_REQUESTS = 10
"""With fewer requests the window is no window: the whole run is measured, and it says so."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of a run: from `start_us` to before `end_us`."""

    start_us: int
    end_us: int
    rule: str
    """How it was chosen, in words."""
    steady: bool = True
    """False for a whole run: its figures have the warm-up and the drain in them."""

    @property
    def length_s(self) -> float:
        return (self.end_us - self.start_us) / 1e6


def whole(run: Run, rule: str = "the whole run") -> Window:
    """From the start to the end of the last answer, both in it."""
    last = max((max(one.end_us, one.intended_us) for one in run.exchanges), default=0)
    return Window(start_us=0, end_us=max(run.end_us, last) + 1, rule=rule, steady=False)


def explicit(run: Run, warmup_s: float, end_s: float | None = None) -> Window:
    """From `warmup_s` after the start to `end_s` after it, or as `choose` would end it.

    Raises InvalidParameter where nothing is left.
    """
    if not warmup_s >= 0:
        raise InvalidParameter(f"The warm-up is {warmup_s:g} s; it must be 0 or more.", "warmup")
    start = round(warmup_s * 1e6)
    end = _last(run) if end_s is None else round(end_s * 1e6)
    if end <= start:
        raise InvalidParameter(
            f"The warm-up is {warmup_s:g} s, and the time to measure ends after {end / 1e6:g} s; "
            "make the warm-up shorter, or the run longer.",
            "warmup",
        )
    return Window(start_us=start, end_us=end, rule=f"from {start / 1e6:g} s to {end / 1e6:g} s, as asked")


def choose(run: Run) -> Window:
    """The steady window.

    It begins when the load is what it will be: all clients of a closed loop have begun, and a warm-up is over that
    is as long as the median session (requests in flight grow for about that time, since none ends before), at least
    a tenth and at most a third of the time in which sessions begin. It ends when the load falls: when the last
    session of an open loop begins, or when the first client of a closed loop finds no session left.

    A run that was stopped ends before the first request that was then given up, so that all in the window had their
    time.

    Where fewer than `MIN_REQUESTS` were meant to be sent in it: the whole run.
    """
    if not run.exchanges:
        return whole(run, "the whole run; it has no requests")
    begins, ends = _sessions(run.exchanges)
    first, end = int(begins.min()), _last(run)
    span = int(begins.max()) - first
    typical = int(np.median(ends - begins))
    warmup = min(max(span * WARMUP_SHARE, typical), span * WARMUP_MOST)
    start = max(first + round(warmup), _all_begun(run, begins))
    inside = sum(start <= one.intended_us < end for one in run.exchanges)
    if inside < MIN_REQUESTS:
        return whole(
            run, f"the whole run: a steady part of it would have {inside} request{'s' * (inside != 1)}"
        )
    rule = (
        f"without {start / 1e6:.1f} s of warm-up at the start and {(run.end_us - end) / 1e6:.1f} s at the end"
    )
    return Window(start_us=start, end_us=end, rule=rule)


def _sessions(exchanges: list[Exchange]) -> tuple[Ints, Ints]:
    """When each session began (was meant to) and when its last answer ended, in microseconds."""
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    for one in exchanges:
        begins[one.session] = min(begins.get(one.session, one.intended_us), one.intended_us)
        ends[one.session] = max(ends.get(one.session, one.end_us), one.end_us)
    return np.array(list(begins.values())), np.array([ends[session] for session in begins])


def _all_begun(run: Run, begins: Ints) -> int:
    """When the last client of a closed loop sent its first request; of an open loop, when the first came."""
    if run.clients is None:
        return int(begins.min())
    firsts: dict[int, int] = {}
    for one in run.exchanges:
        if one.client is not None:
            firsts[one.client] = min(firsts.get(one.client, one.intended_us), one.intended_us)
    if firsts:
        return max(firsts.values())
    return int(np.sort(begins)[min(run.clients, len(begins)) - 1])


def _last(run: Run) -> int:
    """When the load begins to fall."""
    if not run.exchanges:
        return 0
    given_up = [one.intended_us for one in run.exchanges if one.error == "client"] if run.stopped else []
    return min([_falls(run), *given_up])


def _falls(run: Run) -> int:
    begins, ends = _sessions(run.exchanges)
    last = int(begins.max())
    if run.clients is None:
        return last
    ended: dict[int, int] = {}
    for one in run.exchanges:
        if one.client is not None:
            ended[one.client] = max(ended.get(one.client, one.end_us), one.end_us)
    if ended:
        return min(ended.values())
    # Who ends a session after the last was taken finds none.
    later = ends[ends > last]
    return int(later.min()) if len(later) else last
