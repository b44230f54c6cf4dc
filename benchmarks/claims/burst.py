"""One process of the claim on memory utilisation: a burst of requests in KV memory that is a share of a budget.

    python -m benchmarks.claims.burst MODEL_DIR SHARE BUDGET_BYTES REQUESTS

Prints JSON: bytes of the pool, preemptions, requests that were served to their end, and the most memory that was
resident beside the weights and what the process had before.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

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


def burst(model_dir: str, share: float, budget_bytes: int, requests: int) -> dict[str, int]:
    """All requests at once, to their end."""
    load_kernels()
    model = StoredModel.load(Path(model_dir))
    adds = [add(f"burst {number}", PROMPT, OUTPUTS, model.spec.vocab_size) for number in range(requests)]
    before = resident_bytes("VmRSS")
    settings: dict[str, Any] = {
        "model_dir": model_dir,
        "max_model_len": 512,
        "kv_dtype": "fp32",
        "weights": "copy",
        "prefix_cache": False,
    }
    asked = EngineConfig(memory_utilization=share, **settings)
    blocks = limits_for(model.spec, asked, budget_bytes).num_blocks
    engine = build_engine(EngineConfig(num_blocks=blocks, **settings))
    for one in adds:
        engine.add(one)
    finished = preemptions = 0
    while not engine.idle:
        outputs = engine.step()
        finished += sum(item.finish_reason == "length" for item in outputs.items)
        preemptions = outputs.stats.preemptions
    engine.check()
    engine.close()
    weights = sum(tensor.nbytes for tensor in model.tensors.values())
    peak = resident_bytes("VmHWM") - before - weights
    return {
        "pool_bytes": blocks * engine.info.block_bytes,
        "preemptions": preemptions,
        "finished": finished,
        "peak_bytes": peak,
    }


if __name__ == "__main__":
    print(json.dumps(burst(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))))
