"""Standard output whose reader has gone. Knows nothing of what is written."""

from __future__ import annotations

import os
import sys

__all__ = ["give_up_output"]


def give_up_output() -> None:
    """Nothing can be written to standard output: the interpreter must not try to flush to it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
