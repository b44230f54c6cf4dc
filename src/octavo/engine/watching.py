"""Who watches what an engine client does, request by request and step by step. Knows only what is told.

An `Observer` counts for ever and must be cheap; a watcher is there for some seconds, and only then is the engine asked
what each of its steps computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from octavo.engine.journal import Record
from octavo.engine.messages import Stats, StepSeen
from octavo.scheduling.outputs import FinishReason, SequenceOutput

__all__ = ["Watcher", "Watching"]


class Watcher(Protocol):
    """Called on the event loop: it must not block."""

    def on_request(self, record: Record) -> None:
        """It begins; or it had begun already when the watch did."""

    def on_output(self, output: SequenceOutput) -> None: ...

    def on_end(self, request_id: str, reason: FinishReason) -> None: ...

    def on_step(self, step: StepSeen | None, stats: Stats) -> None:
        """`step` is None for one that computed nothing."""


class Watching:
    """Those who watch one client."""

    def __init__(self, ask: Callable[[bool], None]) -> None:
        """`ask`: tell the engine whether it is watched."""
        self._ask = ask
        self._watchers: list[Watcher] = []

    def add(self, watcher: Watcher, opened: Iterable[Record]) -> None:
        """`opened`: the requests that are there already."""
        self._watchers.append(watcher)
        for record in opened:
            watcher.on_request(record)
        if len(self._watchers) == 1:
            self._ask(True)

    def remove(self, watcher: Watcher) -> None:
        """It is told nothing more; removing it twice is harmless."""
        if watcher in self._watchers:
            self._watchers.remove(watcher)
            if not self._watchers:
                self._ask(False)

    def engine_began(self) -> None:
        """A new engine process is there, and knows of nobody."""
        if self._watchers:
            self._ask(True)

    def request(self, record: Record) -> None:
        for one in self._watchers:
            one.on_request(record)

    def output(self, output: SequenceOutput) -> None:
        for one in self._watchers:
            one.on_output(output)

    def ended(self, request_id: str, reason: FinishReason) -> None:
        for one in self._watchers:
            one.on_end(request_id, reason)

    def step(self, step: StepSeen | None, stats: Stats) -> None:
        for one in self._watchers:
            one.on_step(step, stats)
