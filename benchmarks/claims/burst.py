"""One process of the claim on memory utilisation: a burst of requests in KV memory that is a share of what is free.

    python -m benchmarks.claims.burst MODEL_DIR SHARE BUDGET_BYTES REQUESTS [GROUP]

With a memory cgroup (see cgroup.py) the process enters it and limits it to what it uses then, the weights, and the
budget: the engine finds that by itself. Without one the pool is sized for the budget. Prints JSON: bytes of the pool,
preemptions, requests that were served to their end, and the most memory that was used of the budget.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.claims.cgroup import Group
from benchmarks.engine import add
from octavo.backends.native import load_kernels
from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.memory.sizing import limits_for
from octavo.models.store import StoredModel

PROMPT, OUTPUTS = 200, 100
"""Tokens of each request."""


def resident_bytes(name: str) -> int:
    """This process's memory now (VmRSS), or at its peak (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def burst(
    model_dir: str, share: float, budget_bytes: int, requests: int, group: Group | None
) -> dict[str, int]:
    """All requests at once, to their end."""
    if group:
        group.enter()
    load_kernels()
    model = StoredModel.load(Path(model_dir))
    weights = sum(tensor.nbytes for tensor in model.tensors.values())
    adds = [add(f"burst {number}", PROMPT, OUTPUTS, model.spec.vocab_size) for number in range(requests)]
    settings: dict[str, Any] = {
        "model_dir": model_dir,
        "max_model_len": 512,
        "kv_dtype": "fp32",
        "weights": "copy",
        "prefix_cache": False,
        "speculation": "off",
    }
    asked = EngineConfig(memory_utilization=share, **settings)
    if group:
        before = group.used_bytes()
        group.limit(before + weights + budget_bytes)
    else:
        before = resident_bytes("VmRSS")
        blocks = limits_for(model.spec, asked, budget_bytes).num_blocks
        asked = EngineConfig(num_blocks=blocks, **settings)
    engine = build_engine(asked)
    for one in adds:
        engine.add(one)
    finished = preemptions = 0
    while not engine.idle:
        outputs = engine.step()
        finished += sum(item.finish_reason == "length" for item in outputs.items)
        preemptions = outputs.stats.preemptions
    engine.check()
    pool = engine.info.num_blocks * engine.info.block_bytes
    engine.close()
    peak = group.peak_bytes() if group else resident_bytes("VmHWM")
    return {
        "pool_bytes": pool,
        "preemptions": preemptions,
        "finished": finished,
        "peak_bytes": peak - before - weights,
    }


if __name__ == "__main__":
    place = Group(Path(sys.argv[5])) if len(sys.argv) > 5 else None
    print(json.dumps(burst(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), place)))
