"""Who did what when, a row for each sequence, and what made others wait. Knows recorded steps, no scheduler.

A stream that waits while somebody's prompt is computed is a generation stall (Agrawal et al. 2024, arXiv:2403.02310):
here it is a state of its own, so that it is seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np

from octavo.bench.events import parts_of
from octavo.bench.record import Run
from octavo.charts.figure import Axis, Lanes
from octavo.telemetry.timeline import Step, Work

__all__ = [
    "MAX_ROWS",
    "STATES",
    "Row",
    "Span",
    "Stall",
    "State",
    "gantt",
    "lanes",
    "longest_stall",
    "stall_words",
    "window_of",
]

State = Work | Literal["stalled", "waiting", "preempted"]
"""What it computes; or it runs and is not in the step; has not begun; has lost its place."""
STATES: tuple[State, ...] = (*get_args(Work), "stalled", "waiting", "preempted")
_COLOURS: dict[State, int] = {
    "prefill": 2,
    "decode": 1,
    "draft": 5,
    "stalled": 4,
    "waiting": 8,
    "preempted": 7,
}
_LEAST_MARGIN_US = 250_000
"""Around a stall."""
MAX_ROWS = 300
"""Of a figure: a lane needs a pixel to be seen."""


class Span(NamedTuple):
    state: State
    begin_us: int
    end_us: int


class Row(NamedTuple):
    """A sequence's, without holes from its arrival to its end, as far as the steps tell."""

    replica: int
    request: str
    child: int
    spans: list[Span]

    @property
    def name(self) -> str:
        return f"request {self.request}" + (f", answer {self.child + 1}" if self.child else "")

    def of(self, state: State, begin_us: int, end_us: int) -> int:
        """Microseconds of this time that it is in this state."""
        return sum(
            max(0, min(one.end_us, end_us) - max(one.begin_us, begin_us))
            for one in self.spans
            if one.state == state
        )


class Stall(NamedTuple):
    """Between two tokens of an answer that followed each other."""

    request: str
    begin_us: int
    end_us: int

    @property
    def length_us(self) -> int:
        return self.end_us - self.begin_us


def longest_stall(run: Run) -> Stall | None:
    """Of several equally long ones the first; None where no answer has two tokens at two times."""
    found = None
    for first, events in parts_of(run.exchanges):
        gaps = np.where(events.owner[1:] == events.owner[:-1], np.diff(events.at_us), 0)
        longest = int(gaps.max(initial=0))
        if not longest:
            continue
        begins = np.where(gaps == longest, events.at_us[:-1], np.iinfo(np.int64).max)
        place = int(begins.argmin())
        begin_us = int(events.at_us[place])
        if found is None or (-longest, begin_us) < (-found.length_us, found.begin_us):
            request = run.exchanges[first + events.owner[place]].index
            found = Stall(str(request), begin_us, begin_us + longest)
    return found


def window_of(stall: Stall) -> tuple[int, int]:
    """From and until, in microseconds: as long before and behind it as it is long, or a quarter of a second."""
    margin_us = max(stall.length_us, _LEAST_MARGIN_US)
    return max(stall.begin_us - margin_us, 0), stall.end_us + margin_us


def gantt(steps: Iterable[Step]) -> list[Row]:
    """Of every sequence that is in one of these steps, in the order in which they came."""
    made: list[Row] = []
    by_replica: dict[int, list[Step]] = {}
    for step in steps:
        by_replica.setdefault(step.replica, []).append(step)
    for replica, own in by_replica.items():
        made += _rows(replica, own)
    return sorted(made, key=lambda row: (row.spans[0].begin_us, row.replica))


def _rows(replica: int, steps: list[Step]) -> list[Row]:
    rows: dict[tuple[str, int], Row] = {}
    away: dict[tuple[str, int], State] = {}
    """What those do that are not in a step."""
    begin_us = steps[0].begin_us
    for step in steps:
        for name in step.preempted:
            rows.setdefault(name, Row(replica, *name, []))
            away[name] = "preempted"
        for one in step.admitted:
            name = one.request, one.child
            if name not in rows:
                rows[name] = Row(replica, *name, [])
                _extend(rows[name], "waiting", max(one.arrived_us, begin_us), step.begin_us)
            away[name] = "stalled"
        works = {(one.request, one.child): one.work for one in step.shares}
        for name in works:
            if name not in rows:  # it ran before, and was in no step since the first
                rows[name] = Row(replica, *name, [])
                _extend(rows[name], "stalled", begin_us, step.begin_us)
                away[name] = "stalled"
        for name, state in away.items():
            _extend(rows[name], works.get(name, state), step.begin_us, step.end_us)
        for name in step.ended:
            away.pop(name, None)
    return [row for row in rows.values() if row.spans]


def _extend(row: Row, state: State, begin_us: int, end_us: int) -> None:
    """States that go on are one span, but each part of a prompt is its own. Time between two steps is of the first."""
    if row.spans and row.spans[-1].end_us < begin_us:
        row.spans[-1] = row.spans[-1]._replace(end_us=begin_us)
    if row.spans and row.spans[-1].state == state != "prefill":
        row.spans[-1] = row.spans[-1]._replace(end_us=end_us)
    elif end_us > begin_us:
        row.spans.append(Span(state, begin_us, end_us))


def stall_words(stall: Stall, steps: Sequence[Step], rows: Sequence[Row]) -> str:
    """One sentence: how long, when, and whose work it was."""
    what = f"{_ms(stall.length_us)} at {stall.begin_us / 1e6:.2f} s"
    within = _within(stall, steps)
    if not within:
        return f"The longest gap between two tokens: {what}, of request {stall.request}."
    prompts: dict[str, int] = {}
    for step in within:
        for share in step.shares:
            if share.work == "prefill":
                prompts[share.request] = prompts.get(share.request, 0) + share.tokens
    if any(request == stall.request for step in within for request, _ in step.preempted):
        return f"The longest stall: {what}: request {stall.request} lost its place, and was computed again."
    whose = _whose(prompts)
    stalled = [row for row in rows if row.of("stalled", stall.begin_us, stall.end_us)]
    if stalled and whose:
        streams = "1 stream" if len(stalled) == 1 else f"{len(stalled)} streams"
        return f"The longest stall: {what}: {whose} computed while {streams} waited."
    last = within[-1]
    of_prompts = f", {sum(prompts.values()):,} of them of prompts" if prompts else ""
    return (
        f"No stream waited for others longer than for a step: the longest gap between two tokens is {what}, "
        f"with {last.tokens:,} tokens in a step{of_prompts}."
    )


def _within(stall: Stall, steps: Sequence[Step]) -> list[Step]:
    """Of the replica that has the stream, the steps that lie in the gap."""
    inside = [one for one in steps if stall.begin_us <= one.begin_us and one.end_us <= stall.end_us]
    own = {one.replica for one in inside for share in one.shares if share.request == stall.request}
    return [one for one in inside if one.replica in own]


def _whose(prompts: dict[str, int]) -> str:
    tokens = sum(prompts.values())
    match list(prompts):
        case []:
            return ""
        case [one]:
            return f"the prompt of request {one} ({tokens:,} tokens) was"
    longest = max(prompts, key=lambda one: prompts[one])
    return f"{len(prompts)} prompts ({tokens:,} tokens, {prompts[longest]:,} of request {longest}) were"


def _ms(us: int) -> str:
    return (
        f"{us / 1e6:.2f} s"
        if us >= 1_000_000
        else f"{us / 1e3:,.0f} ms"
        if us >= 10_000
        else f"{us / 1e3:.1f} ms"
    )


def lanes(rows: Sequence[Row], from_us: int, until_us: int) -> Lanes:
    """The figure. Of many rows those stay that waited longest."""
    kept = slowest(rows, MAX_ROWS)
    spans = [
        (place, max(one.begin_us, from_us) / 1e6, min(one.end_us, until_us) / 1e6, STATES.index(one.state))
        for place, row in enumerate(kept)
        for one in row.spans
        if one.end_us > from_us and one.begin_us < until_us
    ]
    thinned = (
        "" if len(kept) == len(rows) else f"{len(kept)} of {len(rows)} sequences, those that waited longest; "
    )
    return Lanes(
        title="Step by step",
        note=f"{thinned}each sequence a lane, in the order of arrival; stalled: it runs, and is not in the step",
        x=Axis(label="time", quantity="time", low=from_us / 1e6, high=until_us / 1e6),
        classes=[(state, _COLOURS[state]) for state in STATES],
        names=[row.name for row in kept],
        lane=[span[0] for span in spans],
        start=[span[1] for span in spans],
        end=[span[2] for span in spans],
        of=[span[3] for span in spans],
        height=max(120, min(480, 14 * len(kept) + 50)),
    )


def slowest(rows: Sequence[Row], most: int) -> list[Row]:
    """So many of them, those that waited longest, in the same order."""
    if len(rows) <= most:
        return list(rows)

    def waited_us(place: int) -> int:
        away = ("stalled", "waiting", "preempted")
        return sum(one.end_us - one.begin_us for one in rows[place].spans if one.state in away)

    longest = sorted(range(len(rows)), key=lambda place: (-waited_us(place), place))[:most]
    return [rows[place] for place in sorted(longest)]
