"""What a step costs in Python: the engine over a backend that computes nothing.

    python benchmarks/step.py [--repeats 5]

Scheduler, block tables, stop strings, plans and outputs are the real ones. What `benchmarks/engine.py` takes beyond
this is the backend's; this is what a faster backend could not save.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from octavo.backends.base import Handle, Limits, Plan, Samples, TokenSample
from octavo.backends.flight import Flight, Step
from octavo.engine.engine import Engine
from octavo.engine.messages import EngineInfo
from octavo.models.spec import ModelSpec
from octavo.models.store import StoredModel, open_model
from octavo.sampling.params import SamplingParams
from octavo.scheduling.inputs import Add
from octavo.scheduling.scheduler import Scheduler, SchedulerConfig
from octavo.timing.clock import WallClock

ROWS = (1, 8, 32, 128, 256)
STEPS = 200
WARM = 50


class NullBackend:
    """Answers every sample with the same token, at once."""

    name = "null"
    invariant = True
    arithmetic_id = "null"

    def __init__(self, spec: ModelSpec, limits: Limits) -> None:
        self.spec, self.limits = spec, limits
        self._flight: Flight[Step] = Flight()

    def launch(self, plan: Plan) -> Handle:
        return self._flight.launched(Step(plan))

    def sample(self, handle: Handle, masks: Sequence[Any] | None = None) -> None:
        step = self._flight.to_sample(handle, masks)
        step.samples = tuple([TokenSample(5) for _ in range(step.wanted)])

    def collect(self, handle: Handle) -> Samples:
        return self._flight.collect(handle)

    def read_block(self, group: int, block: int) -> bytes:
        return b""

    def write_block(self, group: int, block: int, data: bytes) -> None:
        pass

    def close(self) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="runs of each row")
    arguments = parser.parse_args()
    model_dir = open_model("smollm2").dir
    table = Table("rows", "best, ms a step", "median, ms a step", title="Python's part of a step")
    for rows in ROWS:
        runs = [step_seconds(rows, model_dir) for _ in range(arguments.repeats)]
        table.add_row(str(rows), f"{1e3 * min(runs):.3f}", f"{1e3 * statistics.median(runs):.3f}")
    Console().print(table)


def step_seconds(rows: int, model_dir: Path) -> float:
    """The median step of `rows` streams that decode, with a stop string that never comes."""
    engine = null_engine(rows, model_dir)
    params = SamplingParams(temperature=0.0, max_tokens=4 * STEPS, ignore_eos=True, seed=0, stop=("never",))
    for number in range(rows):
        engine.add(Add(str(number), tuple(random.Random(number).choices(range(100), k=20)), params, 0.0))
    for _ in range(WARM):
        engine.step()
    seconds = []
    gc.collect()
    for _ in range(STEPS):
        began = time.perf_counter()
        engine.step()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def null_engine(rows: int, model_dir: Path) -> Engine:
    """An engine for `rows` streams of a model's vocabulary."""
    model = StoredModel.load(model_dir)
    limits = Limits(
        num_blocks=100 * rows, block_size=16, max_slots=rows, max_step_tokens=512, max_model_len=2048
    )
    scheduler = Scheduler(SchedulerConfig(limits, 1, model.spec.eos_ids), model.vocabulary())
    backend = NullBackend(model.spec, limits)
    info = EngineInfo(
        model=model.spec.name,
        backend=backend.name,
        invariant=backend.invariant,
        arithmetic_id=backend.arithmetic_id,
        capacity=scheduler.capacity,
        num_blocks=limits.num_blocks,
        block_size=limits.block_size,
        block_bytes=0,
        max_step_tokens=limits.max_step_tokens,
        kv_dtype="bf16",
        threads=1,
        pid=0,
    )
    return Engine(scheduler, backend, info, clock=WallClock())


if __name__ == "__main__":
    main()
