"""Names a step that does not end. Knows when steps begin and end, not what is in them.

A step holds the engine's thread, in C++ without the interpreter's lock; so a second thread looks at the time. It only
tells: what to do about it is the parent's decision.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from weakref import WeakMethod

from octavo.timing.clock import Clock

__all__ = ["Watchdog"]

_logger = logging.getLogger(__name__)


class Watchdog:
    """Warns of a step that takes longer than `patience_s` or 20 times what was expected, again each time that it has
    taken twice as long."""

    FACTOR = 20

    def __init__(
        self,
        clock: Clock,
        describe: Callable[[], str],
        *,
        patience_s: float = 10.0,
        look_every_s: float = 1.0,
    ) -> None:
        """`describe`: a method that says the step which runs in words; called from another thread. Its object is not
        kept alive: when that is gone the watch is over."""
        self._clock = clock
        self._describe = WeakMethod(describe)
        self._patience_s = patience_s
        self._look_every_s = look_every_s
        self._began_s: float | None = None
        self._due_s = patience_s
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, expected_s: float = 0.0) -> None:
        """A step begins; the first one starts the thread."""
        self._due_s = max(self._patience_s, self.FACTOR * expected_s)
        self._began_s = self._clock.now_s()
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="octavo-watchdog", daemon=True)
            self._thread.start()

    def done(self) -> None:
        """It has ended."""
        self._began_s = None

    def close(self) -> None:
        """End the thread. Calling it twice is harmless."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(self._look_every_s):
            describe = self._describe()
            if describe is None:
                return
            began_s, due_s = self._began_s, self._due_s
            if began_s is not None and (taken_s := self._clock.now_s() - began_s) > due_s:
                self._due_s = 2 * taken_s
                _logger.error("a step has been running for %.0f s: %s", taken_s, describe())
