"""Simulations are made once, and come back in the order in which they were asked for."""

from __future__ import annotations

import msgspec

from octavo.planning.journal import Journal
from octavo.planning.runs import Runs
from octavo.planning.trying import Task
from tests.planning.inline import Inline
from tests.planning.test_here import ASKED, MEMORIES, here


def test_what_is_known_is_not_simulated_again() -> None:
    executor, journal = Inline(), Journal(None, "test")
    runs, space = Runs(executor, journal), here()
    choice = space.start(space.calibrations[1], MEMORIES[-1])
    workload = msgspec.structs.replace(ASKED, requests=5)
    tasks = [Task(choice=choice, workload=workload, slo="ttft_p95<1s", seed=seed) for seed in (3, 1, 2)]
    first = runs.all(tasks)
    assert [one.seed for one in first] == [3, 1, 2] and runs.made == 3
    assert runs.all(tasks[::-1]) == first[::-1] and runs.one(tasks[1]) == first[1]
    assert runs.made == len(executor.asked) == 3 and runs.taken_over == 0
