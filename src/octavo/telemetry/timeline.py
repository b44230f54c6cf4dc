"""What each step of an engine did: who computed how many tokens in it, who came, was sent back and ended, and how full
memory was. Knows numbers and names, no scheduler. The same shape is a server's and a simulation's.

It is written as JSON lines, a step each, or as events that ui.perfetto.dev and chrome://tracing load ("Trace Event
Format", Google 2016: complete events `X`, instants `i`, counters `C`, metadata `M`, times in microseconds).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

import msgspec

__all__ = ["Admission", "Share", "Step", "Timeline", "Work", "chrome_trace", "json_lines"]

Work = Literal["prefill", "decode", "draft"]
"""What a sequence computes in a step: a part of its prompt (or, after a preemption, of what it had), its next token, or
that and guesses behind it."""

MOST_STEPS = 100_000


class Share(msgspec.Struct, frozen=True):
    """One sequence's part of a step."""

    request: str
    child: int
    work: Work
    start: int
    """The position of its first token here."""
    tokens: int
    drafts: int = 0
    """Of these, guesses."""


class Admission(msgspec.Struct, frozen=True):
    """A sequence begins, or begins again after a preemption, in this step."""

    request: str
    child: int
    arrived_us: int
    cached_tokens: int
    """Found computed."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """From the moment when it was planned until its tokens were taken in. Times are microseconds of the engine's clock,
    memory is in tokens that it has room for, as octavo.memory.accounting has it."""

    number: int
    replica: int
    begin_us: int
    end_us: int
    tokens: int
    shares: tuple[Share, ...]
    admitted: tuple[Admission, ...] = ()
    preempted: tuple[tuple[str, int], ...] = ()
    """Request and child of those that lost their places. In the first step of a timeline: of all that wait since."""
    ended: tuple[tuple[str, int], ...] = ()
    """With this step's tokens."""
    running: int
    waiting: int
    blocks_used: int
    blocks_free: int
    evicted_blocks: int
    """Given away in this step, though what was in them might have been found again."""
    internal_tokens: int
    external_tokens: int
    duplicate_tokens: int
    shared_tokens: int


class Timeline:
    """The last steps of one engine or several."""

    def __init__(self, most: int = MOST_STEPS) -> None:
        """`most`: steps that are kept; older ones are forgotten."""
        self._steps = deque[Step](maxlen=most)
        self._added = 0

    def add(self, step: Step) -> None:
        self._added += 1
        self._steps.append(step)

    @property
    def forgotten(self) -> int:
        """Steps that were too many."""
        return self._added - len(self._steps)

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[Step]:
        """In the order in which they began; of several engines, those of the first first."""
        return iter(sorted(self._steps, key=lambda one: (one.begin_us, one.replica, one.number)))


def json_lines(steps: Iterable[Step]) -> Iterator[bytes]:
    """A line for each."""
    encoder = msgspec.json.Encoder()
    for step in steps:
        yield encoder.encode(step) + b"\n"


def chrome_trace(steps: Iterable[Step]) -> dict[str, Any]:
    """An engine is a process, its steps are a thread, each of its sequences is another, and gauges are counters."""
    writer = _TraceWriter()
    events = [event for step in steps for event in writer.events(step)]
    return {"traceEvents": [*writer.names(), *events], "displayTimeUnit": "ms"}


class _Thread(NamedTuple):
    replica: int
    request: str
    child: int


class _TraceWriter:
    """Gives numbers to sequences as they come: 0 is the steps' thread."""

    def __init__(self) -> None:
        self._threads: dict[_Thread, int] = {}
        self._replicas: dict[int, int] = {}
        """How many sequences each has."""

    def events(self, step: Step) -> Iterator[dict[str, Any]]:
        process, length_us = step.replica, step.end_us - step.begin_us
        self._replicas.setdefault(process, 0)
        yield {
            "ph": "X", "pid": process, "tid": 0, "ts": step.begin_us, "dur": length_us, "cat": "step",
            "name": f"{step.tokens} tokens of {len(step.shares)}",
            "args": {"step": step.number, "tokens": step.tokens, "sequences": len(step.shares)},
        }  # fmt: skip
        for request, child in step.preempted:
            yield self._instant(step, step.begin_us, request, child, "preempted", {})
        for one in step.admitted:
            told = {"arrived_us": one.arrived_us, "cached_tokens": one.cached_tokens}
            yield self._instant(step, step.begin_us, one.request, one.child, "admitted", told)
        for share in step.shares:
            yield {
                "ph": "X", "pid": process, "tid": self._thread(process, share.request, share.child),
                "ts": step.begin_us, "dur": length_us, "cat": share.work, "name": share.work,
                "args": {"step": step.number, "start": share.start, "tokens": share.tokens, "drafts": share.drafts},
            }  # fmt: skip
        for request, child in step.ended:
            yield self._instant(step, step.end_us, request, child, "ended", {})
        for name, values in (
            ("requests", {"running": step.running, "waiting": step.waiting}),
            ("blocks", {"used": step.blocks_used, "free": step.blocks_free}),
            ("tokens", {"in the step": step.tokens}),
            (
                "waste",
                {
                    "internal": step.internal_tokens,
                    "external": step.external_tokens,
                    "duplicate": step.duplicate_tokens,
                },
            ),
        ):
            yield {"ph": "C", "pid": process, "tid": 0, "ts": step.begin_us, "name": name, "args": values}

    def names(self) -> Iterator[dict[str, Any]]:
        """Of processes and threads that events were told of."""
        for replica in sorted(self._replicas):
            yield _name("process", replica, 0, f"replica {replica}")
            yield _name("thread", replica, 0, "steps")
        for thread, number in self._threads.items():
            child = f", answer {thread.child + 1}" if thread.child else ""
            yield _name("thread", thread.replica, number, f"request {thread.request}{child}")

    def _instant(
        self, step: Step, at_us: int, request: str, child: int, name: str, args: dict[str, Any]
    ) -> dict[str, Any]:
        thread = self._thread(step.replica, request, child)
        return {
            "ph": "i", "s": "t", "pid": step.replica, "tid": thread, "ts": at_us, "cat": "scheduler", "name": name,
            "args": {"step": step.number, **args},
        }  # fmt: skip

    def _thread(self, replica: int, request: str, child: int) -> int:
        thread = _Thread(replica, request, child)
        if thread not in self._threads:
            self._replicas[replica] += 1
            self._threads[thread] = self._replicas[replica]
        return self._threads[thread]


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "tid": thread, "name": f"{kind}_name", "args": {"name": name}}
