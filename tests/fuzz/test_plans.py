"""Mutated plans to the kernels: PlanError or an answer, never a signal, and the next plans are computed as ever.

OCTAVO_FUZZ_SEED, OCTAVO_FUZZ_COUNT and OCTAVO_FUZZ_CASE as in test_bodies.
"""

from __future__ import annotations

import pytest

from octavo.models.store import StoredModel
from tests.fuzz.apart import run_apart
from tests.fuzz.mutator import chosen


@pytest.mark.parametrize("count", [150, pytest.param(8000, marks=pytest.mark.slow)])
def test_no_plan_kills(packed_model: StoredModel, count: int) -> None:
    print(run_apart("tests.fuzz.plans", [str(packed_model.dir)], chosen(count)))
