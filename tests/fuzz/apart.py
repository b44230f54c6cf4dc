"""Cases in a process that may die of them. Knows that it names each before it tries it, not what a case is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from tests.conftest import REPOSITORY
from tests.fuzz import mutator

__all__ = ["run_apart"]


def run_apart(module: str, arguments: Sequence[str], numbers: Sequence[int]) -> str:
    """`python -m MODULE ARGUMENT… NUMBER…`, which prints a line for each case and one at the end: that is given back.
    Raises AssertionError with the case that ended it."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", module, *arguments, *map(str, numbers)],
        check=False,
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        timeout=600,
    )
    lines = done.stdout.splitlines()
    if done.returncode:
        raise AssertionError(
            f"OCTAVO_FUZZ_SEED={mutator.SEED} OCTAVO_FUZZ_CASE={lines[-1:]}: exit code {done.returncode}\n"
            f"{done.stderr[:1500]}\n{done.stderr[-4000:]}"
        )
    assert len(lines) == len(numbers) + 1
    return lines[-1]
