"""A real engine is calibrated: what it measures is whole, and its own steps are predicted sensibly."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.simulation.calibrate_engine import calibrate_engine, limits_of, observe, probes, ranges


@pytest.mark.slow
def test_an_engine_s_own_steps_are_predicted(model_dir: Path) -> None:
    settings = EngineConfig(
        model_dir=str(model_dir), num_blocks=64, max_model_len=256, max_step_tokens=32, max_running=4, speculation="off"
    )  # fmt: skip
    engine = build_engine(settings)
    try:
        told = list[tuple[int, int]]()
        found = calibrate_engine(
            engine, model="smollm2", repeats=1, told=lambda done, total: told.append((done, total))
        )
        assert told == [(place, len(told)) for place in range(len(list(probes(engine))) + 1)]
        assert found.limits == limits_of(engine) and found.limits.num_blocks == 64
        assert found.seen["tokens"] == (1, 32) and found.seen["sequences"][1] == 4
        assert found.kv_bytes_per_token == engine.info.block_bytes / 16
        again = observe(engine, repeats=1, seed=1)
        assert ranges(again)["tokens"] == (1, 32)
        # No assertion about time: only that a step of one kind is not taken for one of quite another.
        ratios = [found.pace.seconds(one.loads[0]) / one.seconds for one in again]
        assert 0.1 < statistics.median(ratios) < 10
        engine.check()
        assert engine.idle
    finally:
        engine.close()
