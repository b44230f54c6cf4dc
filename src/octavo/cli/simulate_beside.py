"""Runs on another core beside the one that is shown, where there is one and they take long. Knows no run."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

from octavo.bench.measures import Measures

__all__ = ["beside"]

_MANY = 2000
"""Requests of a run that takes longer than a process needs to begin."""


@contextmanager
def beside(
    names: Sequence[str], measured: Callable[[str], Measures], requests: int
) -> Iterator[Callable[[], dict[str, Measures]]]:
    """Begin `measured` of each name, which a process of its own can be told; what is given tells the measures when they
    are there. `requests`: of each run, as far as they were counted. A run is the same wherever it is made.
    """
    if not names or requests < _MANY or _cores() < 2:
        found = {name: measured(name) for name in names}
        yield lambda: found
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as executor:
        begun = {name: executor.submit(measured, name) for name in names}
        try:
            yield lambda: {name: one.result() for name, one in begun.items()}
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            raise


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
