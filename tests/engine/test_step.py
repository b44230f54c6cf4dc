"""What a step costs in Python, counted in calls: a clock would measure the machine."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from benchmarks.step import null_engine
from octavo.engine.engine import Engine
from octavo.sampling.params import SamplingParams
from octavo.scheduling.inputs import Add


@pytest.fixture
def python_calls(request: pytest.FixtureRequest, model_dir: Path) -> int:
    """Python functions called in one step in which `rows` streams decode; the median of 33 (blocks begin in some)."""
    rows: int = request.param
    engine = null_engine(rows, model_dir)
    params = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True, seed=0, stop=("never",))
    for number in range(rows):
        prompt = tuple(random.Random(number).choices(range(100), k=20))
        engine.add(Add(str(number), prompt, params, 0.0))
    for _ in range(5 + rows // 20):
        engine.step()
    return sorted(_calls(engine) for _ in range(33))[16]


def _calls(engine: Engine) -> int:
    count = 0

    def count_call(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(count_call)
    try:
        engine.step()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize(("python_calls", "most"), [(1, 115), (32, 1000)], indirect=["python_calls"])
def test_a_step_makes_few_calls(python_calls: int, most: int) -> None:
    assert python_calls <= most
