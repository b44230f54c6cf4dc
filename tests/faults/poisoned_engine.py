"""An engine that some prompts end: the real one, whose backend dies of a token in the step that computes it.

Run as `python -m tests.faults.poisoned_engine --fd N --heartbeat M --parent P`.
"""

from __future__ import annotations

import os
import signal
import sys

from octavo.backends.base import Handle, Plan
from octavo.backends.reference import ReferenceBackend
from octavo.engine import __main__ as main

__all__ = ["POISON"]

POISON = 283
"""A token of the tiny model."""


def poison() -> None:
    """From now on each launch looks for it."""

    def launched(self: ReferenceBackend, plan: Plan) -> Handle:
        for each in plan.opens:
            computed = {row.slot: row.start + row.count for row in plan.rows}.get(each.slot, 0)
            if POISON in each.history[:computed]:
                os.kill(os.getpid(), signal.SIGSEGV)
        return original(self, plan)

    original = ReferenceBackend.launch
    ReferenceBackend.launch = launched  # type: ignore[method-assign]


if __name__ == "__main__":
    poison()
    sys.exit(main.main())
