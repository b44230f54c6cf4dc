"""Mutated plans to the kernels: PlanError or an answer, never a signal, and the next plans are computed as ever.

OCTAVO_FUZZ_SEED, OCTAVO_FUZZ_COUNT and OCTAVO_FUZZ_CASE as in test_bodies.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from octavo.models.store import StoredModel
from tests.conftest import REPOSITORY
from tests.fuzz import mutator
from tests.fuzz.mutator import chosen


@pytest.mark.parametrize("count", [150, pytest.param(8000, marks=pytest.mark.slow)])
def test_no_plan_kills(packed_model: StoredModel, count: int) -> None:
    numbers = chosen(count)
    done = subprocess.run(
        [
            sys.executable,
            "-X",
            "faulthandler",
            "-m",
            "tests.fuzz.plans",
            str(packed_model.dir),
            *map(str, numbers),
        ],
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
            f"{done.stderr[-4000:]}"
        )
    print(lines[-1])
    assert len(lines) == len(numbers) + 1
