"""How long the choice of one token takes, by rule. Knows kernels, no model.

    python benchmarks/sampling.py [--isa avx2] [--vocab 49152]

Two rows of logits: `model`, a flat body of unlikely ids under a few hundred likely ones, as language models give;
`flat`, normal logits of deviation 3, whose nucleus has thousands of ids: near the worst for top_p.
"""

from __future__ import annotations

import argparse
import time
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

kernels = import_module("octavo._kernels")
ops = kernels.ops
RULES: list[dict[str, Any]] = [
    {},
    {"repetition": 1.1},
    {"temperature": 1.0},
    {"temperature": 0.7},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.9},
    {"temperature": 0.8, "top_k": 40},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.0, "top_p": 0.99},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 1.0, "top_k": 5000},
]
DRAWS = 200


def row(kind: str, vocab: int) -> NDArray[np.float32]:
    random = np.random.default_rng(0)
    logits = random.standard_normal(vocab, np.float32) * np.float32(2.5 if kind == "model" else 3)
    if kind == "model":
        logits[random.integers(0, vocab, 300)] += random.exponential(5, 300).astype(np.float32)
    return logits


def microseconds(run: Any) -> str:
    seconds = []
    for draw in range(DRAWS):
        start = time.perf_counter()
        run(draw)
        seconds.append(time.perf_counter() - start)
    return f"{np.min(seconds) * 1e6:7.1f} µs  (median {np.median(seconds) * 1e6:.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--isa", default="", help="as OCTAVO_ISA; the best by default")
    parser.add_argument("--vocab", type=int, default=49152)
    arguments = parser.parse_args()
    isa, vocab = arguments.isa, arguments.vocab
    print(f"isa {isa or kernels.isa()}, {vocab} ids, a history of 1,000")
    history = np.random.default_rng(1).integers(0, vocab, 1000).astype(np.int32)
    for kind in ("model", "flat"):
        logits = row(kind, vocab)
        for rule in RULES:
            name = ", ".join(f"{k} {v}" for k, v in rule.items()) or "greedy"
            time_ = microseconds(
                lambda draw, logits=logits, rule=rule: ops.choose(
                    logits, history, prompt_tokens=500, seed=draw, isa=isa, **rule
                )
            )
            print(f"{kind:6} {name:36} {time_}")
        for top in (0, 20):
            print(
                f"{kind:6} {f'score, top {top}':36} "
                f"{microseconds(lambda _, logits=logits, top=top: ops.score(logits, 5, top, isa=isa))}"
            )


if __name__ == "__main__":
    main()
