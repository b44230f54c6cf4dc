"""Who measures what an engine client does (telemetry/metrics.py). Knows only what is told."""

from __future__ import annotations

from typing import Protocol

from octavo.engine.messages import Stats
from octavo.memory.accounting import MemoryUse
from octavo.scheduling.outputs import FinishReason

__all__ = ["Observer"]


class Observer(Protocol):
    """Called on the event loop: it must not block. Times are seconds."""

    def on_step(self, stats: Stats) -> None: ...

    def on_first_tokens(self, prompt_tokens: int, since_arrival_s: float) -> None: ...

    def on_tokens(self, count: int, since_last_s: float | None) -> None:
        """`since_last_s` is None for a sequence's first tokens."""

    def on_finish(self, reason: FinishReason, since_arrival_s: float) -> None:
        """A request ended: the reason of its last sequence, or `abort` when the reader left."""

    def on_restart(self) -> None: ...

    def on_quarantine(self) -> None:
        """A request ended the engine and is not tried again."""

    def on_memory(self, use: MemoryUse) -> None:
        """Once a second, and when nothing is left to do."""
